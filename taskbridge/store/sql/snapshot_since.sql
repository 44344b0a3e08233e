-- A snapshot that sees nothing of what was written since a time, and nearly all that was written before.
SELECT format('%%s:%%s:', x.xid, x.xid)
FROM (
    SELECT least((
        SELECT r.xid FROM {schema}.records r
        WHERE r.source = %(source)s AND r.changed_at >= %(since)s
        ORDER BY r.xid LIMIT 1
    ), pg_snapshot_xmin(pg_current_snapshot())) AS xid
) x
