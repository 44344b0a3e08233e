-- A snapshot that sees nothing of what was written since a time, and nearly all that was written before. `is_rebased`: the
-- first transaction since then has also rows that are an hour older, which only a rebase makes.
SELECT format('%%s:%%s:', x.xid, x.xid) AS snapshot,
       EXISTS (
           SELECT FROM {schema}.records r
           WHERE r.source = %(source)s AND r.id > 0 AND r.xid = x.xid AND r.changed_at < %(since)s - interval '1 hour'
       ) AS is_rebased
FROM (
    SELECT least((
        SELECT r.xid FROM {schema}.records r
        WHERE r.source = %(source)s AND r.id > 0 AND r.changed_at >= %(since)s
        ORDER BY r.xid LIMIT 1
    ), pg_snapshot_xmin(pg_current_snapshot())) AS xid
) x
