-- A base round: which tenants have records that their cursors have not handled, or that are to be tried again? With each
-- the smallest delay of those records and when its records were last taken, as in `tail_news.sql`; one row with nulls if
-- there is none. It reads what is not visible in B, the snapshot of what every cursor has handled. `seen` is the next B:
-- the present snapshot, with the transactions whose records are still pending among those that it does not see.
WITH fresh AS MATERIALIZED (
    SELECT l.tenant, l.xid, min(coalesce(l.delay_ms, %(smallest)s)) AS delay_ms
    FROM {schema}.tails t
    CROSS JOIN LATERAL (
        SELECT i.tenant, i.xid, i.delay_ms
        FROM {schema}.records i
        WHERE i.source = %(source)s AND i.xid >= pg_snapshot_xmax(t.base)
        UNION ALL
        SELECT i.tenant, i.xid, i.delay_ms
        FROM {schema}.records i
        WHERE i.source = %(source)s AND i.xid = ANY (ARRAY(SELECT pg_snapshot_xip(t.base)))
    ) l
    WHERE t.pipeline = %(pipeline)s
    GROUP BY l.tenant, l.xid
), pending AS MATERIALIZED (
    SELECT f.tenant, f.xid, f.delay_ms
    FROM fresh f
    CROSS JOIN (SELECT coalesce((SELECT start FROM {schema}.pipelines WHERE pipeline = %(pipeline)s), '1:1:') AS start) p
    LEFT JOIN LATERAL (
        SELECT s.snapshot
        FROM {schema}.sync_cursors s
        WHERE s.pipeline = %(pipeline)s AND s.tenant = f.tenant
        LIMIT 1
    ) c ON true
    WHERE f.tenant <> '' AND NOT pg_visible_in_snapshot(f.xid, coalesce(c.snapshot, p.start))
), waiting AS (
    SELECT w.tenant, min(w.delay_ms) AS delay_ms
    FROM (
        SELECT n.tenant, n.delay_ms FROM pending n
        UNION ALL
        SELECT q.tenant, coalesce(i.delay_ms, %(smallest)s)
        FROM {schema}.quarantine q
        JOIN {schema}.records i
            ON i.source = %(source)s AND i.tenant = q.tenant AND i.key = q.external_id AND i.revision = q.revision
        WHERE q.pipeline = %(pipeline)s AND q.retry_at IS NOT NULL
    ) w
    GROUP BY w.tenant
)
SELECT n.seen,
       t.base::text AS before,
       pg_snapshot_xmax(t.base) <= pg_snapshot_xmax(pg_current_snapshot()) AS known,
       EXISTS (SELECT FROM fresh) AS fresh,
       w.tenant,
       w.delay_ms,
       (extract(epoch FROM c.last_taken_at) * 1000)::bigint AS last_ms
FROM {schema}.tails t
CROSS JOIN (
    SELECT concat_ws(':', coalesce(min(x.xid), pg_snapshot_xmin(pg_current_snapshot())),
                     pg_snapshot_xmax(pg_current_snapshot()), coalesce(string_agg(x.xid::text, ',' ORDER BY x.xid), '')) AS seen
    FROM (SELECT pg_snapshot_xip(pg_current_snapshot()) AS xid UNION SELECT xid FROM pending) x
) n
LEFT JOIN waiting w ON true
LEFT JOIN LATERAL (
    SELECT s.last_taken_at
    FROM {schema}.sync_cursors s
    WHERE s.pipeline = %(pipeline)s AND s.tenant = w.tenant
    LIMIT 1
) c ON true
WHERE t.pipeline = %(pipeline)s AND NOT pg_is_in_recovery()
