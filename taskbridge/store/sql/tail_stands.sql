-- Where a round begins: the present snapshot, the stored one and when it was stored (in microseconds), and whether that is
-- in this cluster's ids. No row: none is stored, or this is a standby, whose snapshots do not list what is under way.
SELECT pg_current_snapshot()::text AS now,
       t.snapshot::text AS before,
       (extract(epoch FROM t.stored_at) * 1000000)::bigint AS stored_at,
       pg_snapshot_xmax(t.snapshot) <= pg_snapshot_xmax(pg_current_snapshot()) AS known
FROM {schema}.tails t
WHERE t.pipeline = %(pipeline)s AND t.kind = %(kind)s AND NOT pg_is_in_recovery()
