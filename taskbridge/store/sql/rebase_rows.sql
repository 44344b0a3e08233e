-- Rows whose transaction id is not over yet in this cluster get one that always is, 3, the first that a cluster gives.
-- A statement that sets xid itself makes no new revision.
WITH invoice AS (
    UPDATE invoices SET xid = '3' WHERE xid >= pg_snapshot_xmin(%(snapshot)s::pg_snapshot) RETURNING 1
), record AS (
    UPDATE records SET xid = '3' WHERE xid >= pg_snapshot_xmin(%(snapshot)s::pg_snapshot) RETURNING 1
)
SELECT (SELECT count(*) FROM invoice) + (SELECT count(*) FROM record)
