-- Whether the transaction ids of records and cursors are those of this cluster: the stored identifier is its own, and no
-- cursor has seen a transaction that this cluster has not begun (as after a restore of some tables only).
SELECT coalesce(
           (SELECT bool_and(c.system_identifier = s.system_identifier) FROM taskbridge_cluster c, pg_control_system() s),
           false
       )
       AND NOT EXISTS (
           SELECT FROM sync_cursors c
           WHERE pg_snapshot_xmax(coalesce(c.target, c.snapshot)) > pg_snapshot_xmax(pg_current_snapshot())
              OR pg_snapshot_xmax(c.snapshot) > pg_snapshot_xmax(pg_current_snapshot())
       )
