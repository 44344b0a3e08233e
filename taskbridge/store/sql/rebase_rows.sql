-- Rows whose transaction id is not over yet in this cluster get one that always is, 3, the first that a cluster gives.
-- No row gets a new revision; see rebase_revisions.sql.
UPDATE {schema}.records SET xid = '3' WHERE xid >= pg_snapshot_xmin(%(snapshot)s::pg_snapshot)
