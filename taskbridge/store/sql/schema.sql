-- Making and checking the schema, and what tests of an application clear and count.

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

-- name: empty_tables
-- Between tests that share a database.
TRUNCATE {tables}

-- name: our_tables
-- The tables of ours, but for those that are kept.
SELECT tablename FROM pg_tables WHERE schemaname = %(schema)s AND tablename <> ALL (%(kept)s)

-- name: own_cursor
-- A test's transaction owns the cursor of a tenant whose batch it delivers, as a run does: what is muted asks for that.
INSERT INTO {schema}.sync_cursors AS c (pipeline, tenant, snapshot, owner)
SELECT %(pipeline)s, %(tenant)s, coalesce((SELECT start FROM {schema}.pipelines WHERE pipeline = %(pipeline)s), '1:1:'), %(token)s
ON CONFLICT (pipeline, tenant) DO UPDATE SET owner = excluded.owner

-- name: own_delivered
-- What a test was given counts as written by an earlier transaction from then on: else a trigger takes a later change of the
-- row for one of a record that nobody has read. Only the owner keeps ids; his revisions stay as they are.
UPDATE {schema}.records SET xid = '1'
WHERE source = %(source)s AND xid = pg_current_xact_id() AND {schema}.owns_records()
