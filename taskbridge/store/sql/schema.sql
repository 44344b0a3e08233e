-- Creating and checking the schema, and statements for the tests of an application.

-- name: revision
-- The revision of a schema.
SELECT version_num FROM {table}

-- name: make_schema
-- The schema of all our tables.
CREATE SCHEMA {schema}

-- name: no_schema
-- Whether a schema is missing.
SELECT to_regnamespace(%(name)s) IS NULL

-- name: own_schema_first
-- The database (as in SQL), if unqualified names of this role are looked up first in a schema with the name of the role. No row:
-- they are not.
SELECT quote_ident(current_database()) WHERE current_schema() = current_user

-- name: one_migration
-- One migration at a time: a second one waits until the first has committed. The number is "taskbrid" in ASCII.
SELECT pg_advisory_xact_lock(8386110886190934372)

-- name: foreign_schema
-- A relation of the schema if none of its relations is our version table. No row: the schema is ours, or there is none.
SELECT min(relname) FROM pg_class WHERE relnamespace = to_regnamespace(%(name)s) AND relkind <> 'i'
HAVING bool_and(relname <> %(ours)s)

-- name: has_revisions
-- The table with the revision of a schema. Null: there is none.
SELECT to_regclass(%(table)s)

-- name: drop_schema
-- Drop everything of ours.
DROP SCHEMA {schema} CASCADE

-- name: empty_tables
-- Between tests that share a database.
TRUNCATE {tables}

-- name: our_tables
-- Our tables, except those that are kept.
SELECT tablename FROM pg_tables WHERE schemaname = %(schema)s AND tablename <> ALL (%(kept)s)

-- name: own_cursor
-- A test's transaction owns the cursor of the tenant whose batch it delivers, like a run: muting depends on that.
INSERT INTO {schema}.sync_cursors AS c (pipeline, tenant, snapshot, owner)
SELECT %(pipeline)s, %(tenant)s, coalesce((SELECT start FROM {schema}.pipelines WHERE pipeline = %(pipeline)s), '1:1:'), %(token)s
ON CONFLICT (pipeline, tenant) DO UPDATE SET owner = excluded.owner

-- name: own_delivered
-- Delivered records of a test count as written by an earlier transaction from then on: otherwise a trigger would treat a later
-- change of the row as one of an unread record. Only the owner can keep ids; revisions stay as they are.
UPDATE {schema}.records SET xid = '1'
WHERE source = %(source)s AND xid = pg_current_xact_id() AND {schema}.owns_records()
