-- Making and checking the schema.

-- name: revision
-- The revision of a schema.
SELECT version_num FROM {table}

-- name: make_schema
-- The schema in which all tables of ours lie.
CREATE SCHEMA {schema}

-- name: no_schema
-- Whether a schema is missing.
SELECT to_regnamespace(%(name)s) IS NULL

-- name: own_schema_first
-- The database, as SQL writes it, where unqualified names of this role are first those of a schema that is called as the role
-- is. No row: they are not.
SELECT quote_ident(current_database()) WHERE current_schema() = current_user

-- name: one_migration
-- One migration at a time: a second one waits until the first has committed. The number is "taskbrid" in ASCII.
SELECT pg_advisory_xact_lock(8386110886190934372)

-- name: foreign_schema
-- A relation of the schema where none of its relations is our version table. No row: the schema is ours, or there is none.
SELECT min(relname) FROM pg_class WHERE relnamespace = to_regnamespace(%(name)s) AND relkind <> 'i'
HAVING bool_and(relname <> %(ours)s)

-- name: has_revisions
-- Where the revision of a schema is kept. Null: there is none.
SELECT to_regclass(%(table)s)

-- name: drop_schema
-- Everything of ours goes.
DROP SCHEMA {schema} CASCADE
