-- Rows with a transaction id that this cluster has not finished get 3, the first that a cluster gives, which it has. Their
-- revisions stay; see rebase_revisions.sql.
UPDATE {schema}.records SET xid = '3' WHERE xid >= pg_snapshot_xmin(%(snapshot)s::pg_snapshot)
