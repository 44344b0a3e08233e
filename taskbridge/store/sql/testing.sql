-- What tests of an application clear and count.

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
