-- Rows whose transaction id is not over yet in this cluster get one that always is, 3, the first that a cluster gives.
-- No row gets a new revision; see rebase_revisions.sql.
WITH invoice AS (
    UPDATE invoices SET xid = '3' WHERE xid >= pg_snapshot_xmin(%(snapshot)s::pg_snapshot) RETURNING 1
), record AS (
    UPDATE records SET xid = '3' WHERE xid >= pg_snapshot_xmin(%(snapshot)s::pg_snapshot) RETURNING 1
)
SELECT (SELECT count(*) FROM invoice) + (SELECT count(*) FROM record)
