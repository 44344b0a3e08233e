-- Whether the transaction ids of records and cursors are those of this cluster: the stored identifier is its own, and no
-- source's newest record, and none of a thousand cursors, has seen a transaction that this cluster has not begun (as after
-- a restore of some tables only).
WITH RECURSIVE newest AS (
    (SELECT source, xid FROM {schema}.records WHERE id > 0 ORDER BY source DESC, xid DESC LIMIT 1)
    UNION ALL
    SELECT r.source, r.xid
    FROM newest n
    CROSS JOIN LATERAL (
        SELECT source, xid FROM {schema}.records WHERE id > 0 AND source < n.source ORDER BY source DESC, xid DESC LIMIT 1
    ) r
)
SELECT coalesce(
           (
               SELECT bool_and(c.system_identifier = s.system_identifier)
               FROM {schema}.taskbridge_cluster c, pg_control_system() s
           ),
           false
       )
       AND NOT EXISTS (SELECT FROM newest WHERE xid >= pg_snapshot_xmax(pg_current_snapshot()))
       AND NOT EXISTS (
           SELECT FROM (SELECT snapshot, target FROM {schema}.sync_cursors LIMIT 1000) c
           WHERE greatest(pg_snapshot_xmax(c.snapshot), pg_snapshot_xmax(c.target))
               > pg_snapshot_xmax(pg_current_snapshot())
       )
