-- A round of the tail: which tenants have records that are visible now and not visible in T, that their cursors have not
-- handled and that no run has looked at? With each the smallest delay of those records (`smallest` where one has none) and
-- when its records were last taken, in milliseconds of the Unix epoch; one row with nulls if there is none.
-- `seen` is the next T, `fresh` whether there was any such record, handled or not, and `known` false where T was stored in
-- another cluster's ids. No row: no tail was begun, or this is a standby, whose snapshots do not list what is under way.
-- "Not visible in T" is written as two ordered branches of one index. A range from T's xmin would read all that came since
-- the oldest transaction began, and both bounds on one scan would start it at the looser one. Cursors are looked up one by
-- one (LIMIT 1), for a join would read them all.
WITH fresh AS MATERIALIZED (
    SELECT l.tenant, l.xid, min(coalesce(l.delay_ms, %(smallest)s)) AS delay_ms
    FROM {schema}.tails t
    CROSS JOIN LATERAL (
        SELECT i.tenant, i.xid, i.delay_ms
        FROM {schema}.records i
        WHERE i.source = %(source)s AND i.xid >= pg_snapshot_xmax(t.snapshot)
        UNION ALL
        SELECT i.tenant, i.xid, i.delay_ms
        FROM {schema}.records i
        WHERE i.source = %(source)s AND i.xid = ANY (ARRAY(SELECT pg_snapshot_xip(t.snapshot)))
    ) l
    WHERE t.pipeline = %(pipeline)s
    GROUP BY l.tenant, l.xid
), pending AS (
    SELECT f.tenant, min(f.delay_ms) AS delay_ms, max(c.last_taken_at) AS last_taken_at
    FROM fresh f
    CROSS JOIN (SELECT coalesce((SELECT start FROM {schema}.pipelines WHERE pipeline = %(pipeline)s), '1:1:') AS start) p
    LEFT JOIN LATERAL (
        SELECT s.snapshot, s.looked, s.last_taken_at
        FROM {schema}.sync_cursors s
        WHERE s.pipeline = %(pipeline)s AND s.tenant = f.tenant
        LIMIT 1
    ) c ON true
    WHERE f.tenant <> ''
      AND NOT pg_visible_in_snapshot(f.xid, coalesce(c.snapshot, p.start))
      AND NOT coalesce(pg_visible_in_snapshot(f.xid, c.looked), false)
    GROUP BY f.tenant
)
SELECT pg_current_snapshot()::text AS seen,
       t.snapshot::text AS before,
       pg_snapshot_xmax(t.snapshot) <= pg_snapshot_xmax(pg_current_snapshot()) AS known,
       EXISTS (SELECT FROM fresh) AS fresh,
       p.tenant,
       p.delay_ms,
       (extract(epoch FROM p.last_taken_at) * 1000)::bigint AS last_ms
FROM {schema}.tails t
LEFT JOIN pending p ON true
WHERE t.pipeline = %(pipeline)s AND NOT pg_is_in_recovery()
