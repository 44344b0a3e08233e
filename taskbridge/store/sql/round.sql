-- One page of a round of the tail or of the base (`kind`): which tenants have records that are visible now, not visible in
-- the stored snapshot, and pending? The tail leaves out what a run has looked at. The base leaves out what the tail has not
-- seen yet, unless `every` one is asked for, and adds what is to be tried again. With each tenant comes the smallest delay of those records (`smallest` where
-- one has none, or the pipeline has no delays) and when its records were last taken, in milliseconds of the Unix epoch.
-- The row without a tenant says of the page: `until`, the transaction that the next page begins with (null: it is the last
-- one), `fresh`, whether there was any record, handled or not, and for the base the transactions `open_xids` that have
-- pending records.
-- A page is some transactions from `after` on, in the order of their ids: about `size` records, and more where one
-- transaction wrote more. "Not visible in a snapshot" is written as two ordered branches of one index. A range from the
-- snapshot's xmin would read all that came since the oldest transaction began. Cursors are looked up one by one (LIMIT 1),
-- for a join would read them all.
WITH unseen AS MATERIALIZED (
    SELECT x.xid
    FROM {schema}.tails t
    CROSS JOIN LATERAL pg_snapshot_xip(t.snapshot) x (xid)
    WHERE t.pipeline = %(pipeline)s AND t.kind = %(kind)s AND x.xid >= %(after)s::text::xid8
    ORDER BY x.xid
    LIMIT %(size)s
), page AS MATERIALIZED (
    SELECT l.*
    FROM (
        (
            SELECT i.tenant, i.xid, i.id, i.delay_ms
            FROM unseen x
            CROSS JOIN LATERAL (
                SELECT r.tenant, r.xid, r.id, r.delay_ms
                FROM {schema}.records r
                WHERE r.source = %(source)s AND r.xid = x.xid
                ORDER BY r.id
                LIMIT %(size)s + 1
            ) i
            ORDER BY i.xid, i.id
            LIMIT %(size)s + 1
        )
        UNION ALL
        (
            SELECT i.tenant, i.xid, i.id, i.delay_ms
            FROM {schema}.tails t
            CROSS JOIN LATERAL (
                SELECT r.tenant, r.xid, r.id, r.delay_ms
                FROM {schema}.records r
                WHERE r.source = %(source)s AND r.xid >= greatest(pg_snapshot_xmax(t.snapshot), %(after)s::text::xid8)
                ORDER BY r.xid, r.id
                LIMIT %(size)s + 1
            ) i
            WHERE t.pipeline = %(pipeline)s AND t.kind = %(kind)s AND (SELECT count(*) FROM unseen) < %(size)s
        )
    ) l
    ORDER BY l.xid, l.id
    LIMIT %(size)s + 1
), edge AS MATERIALIZED (
    -- A full page may hold a part of its last transaction, which is left to the next page, or is read whole if it is alone.
    SELECT p.xid, p.is_full AND p.is_alone AS is_alone,
           CASE WHEN p.is_full AND NOT p.is_alone THEN p.xid::text
                WHEN p.is_full THEN (p.xid::text::bigint + 1)::text
                WHEN u.is_full THEN (u.xid::text::bigint + 1)::text END AS until
    FROM (SELECT max(xid) AS xid, min(xid) = max(xid) AS is_alone, count(*) > %(size)s AS is_full FROM page) p
    CROSS JOIN (SELECT max(xid) AS xid, count(*) = %(size)s AS is_full FROM unseen) u
), fresh AS MATERIALIZED (
    SELECT l.tenant, l.xid, min(coalesce(CASE WHEN %(has_delays)s THEN l.delay_ms END, %(smallest)s)) AS delay_ms
    FROM edge e
    CROSS JOIN LATERAL (
        SELECT p.tenant, p.xid, p.delay_ms FROM page p WHERE NOT e.is_alone AND (e.until IS NULL OR p.xid < e.until::xid8)
        UNION ALL
        SELECT r.tenant, r.xid, r.delay_ms
        FROM {schema}.records r
        WHERE e.is_alone AND r.source = %(source)s AND r.xid = e.xid
    ) l
    GROUP BY l.tenant, l.xid
), pending AS MATERIALIZED (
    SELECT f.tenant, f.xid, f.delay_ms, c.last_taken_at
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
      AND (%(kind)s = 'base' OR NOT coalesce(pg_visible_in_snapshot(f.xid, c.looked), false))
), waiting AS (
    SELECT w.tenant, min(w.delay_ms) AS delay_ms, max(w.last_taken_at) AS last_taken_at
    FROM (
        SELECT p.tenant, p.delay_ms, p.last_taken_at
        FROM pending p
        WHERE %(every)s OR coalesce(
            pg_visible_in_snapshot(
                p.xid, (SELECT snapshot FROM {schema}.tails WHERE pipeline = %(pipeline)s AND kind = 'tail')
            ),
            true
        )
        UNION ALL
        SELECT q.tenant, coalesce(CASE WHEN %(has_delays)s THEN i.delay_ms END, %(smallest)s), c.last_taken_at
        FROM {schema}.quarantine q
        JOIN {schema}.records i
            ON i.source = %(source)s AND i.tenant = q.tenant AND i.key = q.external_id AND i.revision = q.revision
        LEFT JOIN LATERAL (
            SELECT s.last_taken_at
            FROM {schema}.sync_cursors s
            WHERE s.pipeline = %(pipeline)s AND s.tenant = q.tenant
            LIMIT 1
        ) c ON true
        WHERE %(kind)s = 'base' AND %(after)s::text = '0' AND q.pipeline = %(pipeline)s AND q.retry_at IS NOT NULL
    ) w
    GROUP BY w.tenant
)
SELECT e.until::bigint AS until,
       EXISTS (SELECT FROM fresh) AS fresh,
       ARRAY(SELECT DISTINCT p.xid::text::bigint FROM pending p WHERE %(kind)s = 'base') AS open_xids,
       NULL::text AS tenant,
       NULL::bigint AS delay_ms,
       NULL::bigint AS last_ms
FROM edge e
UNION ALL
SELECT NULL, NULL, NULL, w.tenant, w.delay_ms, (extract(epoch FROM w.last_taken_at) * 1000)::bigint
FROM waiting w
