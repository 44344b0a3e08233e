-- The change poller and the reconciler.

-- name: pass_ages
-- How many seconds ago the snapshots of the change poller (`tail`) and the reconciler (`base`) were last stored, by any
-- worker.
SELECT pipeline, kind, greatest(0, extract(epoch FROM clock_timestamp() - stored_at))::float8 AS seconds
FROM {schema}.tails
WHERE pipeline = ANY (%(pipelines)s::text[])

-- name: begin_passes
-- Where the passes of a pipeline begin if nothing is stored, or snapshots of another cluster are. The poller begins at the
-- present, and the reconciler, which finds everything older, where the pipeline's cursors begin.
INSERT INTO {schema}.tails AS t (pipeline, kind, snapshot)
VALUES (%(pipeline)s, 'tail', pg_current_snapshot()),
       (%(pipeline)s, 'base', {pipeline_start})
ON CONFLICT (pipeline, kind) DO UPDATE SET snapshot = excluded.snapshot, stored_at = excluded.stored_at
WHERE %(anew)s

-- name: store_snapshot
-- After all reminders of a page: store what it has seen (null: nothing new, so the snapshot is not written again). No row: another
-- process has stored one in the meantime.
UPDATE {schema}.tails
SET snapshot = coalesce(%(seen)s::pg_snapshot, snapshot), stored_at = clock_timestamp()
WHERE pipeline = %(pipeline)s AND kind = %(kind)s AND (extract(epoch FROM stored_at) * 1000000)::bigint = %(stored_at)s
RETURNING (extract(epoch FROM stored_at) * 1000000)::bigint

-- name: retries
-- One page of the records that are to be retried out of quarantine, after (`tenant`, `key`): for each tenant the last key of the
-- page, the smallest delay (`smallest` if a record has none, or the pipeline has no delays; null: none of the rows matters, because
-- the records have changed, or the tenant is paused and `with_paused` is false) and when its records were last taken, in
-- milliseconds since the Unix epoch. No row: the end.
SELECT q.tenant,
       max(q.external_id) AS key,
       min(r.delay_ms) AS delay_ms,
       (extract(epoch FROM max(c.last_taken_at)) * 1000)::bigint AS last_ms
FROM (
    SELECT o.tenant, o.external_id, o.revision
    FROM {schema}.quarantine o
    WHERE o.pipeline = %(pipeline)s AND o.retry_at IS NOT NULL AND (o.tenant, o.external_id) > (%(tenant)s, %(key)s)
    ORDER BY o.tenant, o.external_id
    LIMIT %(size)s
) q
LEFT JOIN LATERAL (
    SELECT coalesce(CASE WHEN %(has_delays)s THEN i.delay_ms END, %(smallest)s) AS delay_ms
    FROM {schema}.records i
    WHERE i.source = %(source)s AND i.tenant = q.tenant AND i.key = q.external_id AND i.revision = q.revision
      AND (%(with_paused)s OR NOT EXISTS (
          SELECT FROM {schema}.pauses h WHERE h.pipeline = %(pipeline)s AND h.tenant IN ('', q.tenant)
      ))
    LIMIT 1
) r ON true
LEFT JOIN LATERAL (
    SELECT s.last_taken_at
    FROM {schema}.sync_cursors s
    WHERE s.pipeline = %(pipeline)s AND s.tenant = q.tenant
    LIMIT 1
) c ON true
GROUP BY q.tenant
ORDER BY q.tenant

-- name: stored_snapshot
-- Where a pass begins: the present snapshot, the stored one and when it was stored (in microseconds), and whether its ids are
-- of this cluster. No row: none is stored, or this is a standby, whose snapshots do not list transactions in progress.
SELECT pg_current_snapshot()::text AS now,
       t.snapshot::text AS before,
       (extract(epoch FROM t.stored_at) * 1000000)::bigint AS stored_at,
       pg_snapshot_xmax(t.snapshot) <= pg_snapshot_xmax(pg_current_snapshot()) AS known
FROM {schema}.tails t
WHERE t.pipeline = %(pipeline)s AND t.kind = %(kind)s AND NOT pg_is_in_recovery()

-- name: pass_page
-- One page of a pass of the change poller or of the reconciler (`kind`): which tenants have records that are visible now, not
-- visible in the stored snapshot, and pending? The poller leaves out what a run has looked at. The reconciler leaves out what
-- the poller has not seen yet, unless `every` record is asked for. Both leave out paused tenants unless called `with_paused`;
-- their records count as pending, so that the reconciler finds them after the pause. With each tenant comes the smallest delay
-- of these records (`smallest` if one has none, or the pipeline has no delays) and when its records were last taken, as Unix
-- time in milliseconds.
-- The row without a tenant describes the page: the position (`until_xid`, `until_id`) after which the next page begins (null:
-- it is the last one), `fresh`, whether there was any record, handled or not, and for the reconciler the transactions
-- `open_xids` that have pending records.
-- A page is the next `size` records after the position (`after_xid`, `after_id`), by (xid, id); it may end inside of a
-- transaction. "Not visible in a snapshot" is written as two ordered branches of one index. A range from the snapshot's xmin
-- would read everything since the oldest transaction began. `id > 0` holds for all records; the index over all tenants needs
-- that condition. Cursors are looked up one by one (LIMIT 1), since a join would read all of them.
WITH unseen AS MATERIALIZED (
    SELECT x.xid
    FROM {schema}.tails t
    CROSS JOIN LATERAL pg_snapshot_xip(t.snapshot) x (xid)
    WHERE t.pipeline = %(pipeline)s AND t.kind = %(kind)s AND x.xid >= %(after_xid)s::text::xid8
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
                WHERE r.source = %(source)s AND r.id > 0 AND r.xid = x.xid
                  AND r.id > CASE WHEN x.xid = %(after_xid)s::text::xid8 THEN %(after_id)s ELSE -1 END
                ORDER BY r.id
                LIMIT %(size)s
            ) i
            ORDER BY i.xid, i.id
            LIMIT %(size)s
        )
        UNION ALL
        (
            SELECT i.tenant, i.xid, i.id, i.delay_ms
            FROM {schema}.tails t
            CROSS JOIN LATERAL (
                SELECT r.tenant, r.xid, r.id, r.delay_ms
                FROM {schema}.records r
                WHERE r.source = %(source)s AND r.id > 0
                  AND (r.xid, r.id) > (
                      greatest(pg_snapshot_xmax(t.snapshot), %(after_xid)s::text::xid8),
                      CASE WHEN %(after_xid)s::text::xid8 >= pg_snapshot_xmax(t.snapshot) THEN %(after_id)s ELSE -1 END
                  )
                ORDER BY r.xid, r.id
                LIMIT %(size)s
            ) i
            WHERE t.pipeline = %(pipeline)s AND t.kind = %(kind)s AND (SELECT count(*) FROM unseen) < %(size)s
        )
    ) l
    ORDER BY l.xid, l.id
    LIMIT %(size)s
), edge AS MATERIALIZED (
    -- No row: it is the last page.
    SELECT e.xid::text::bigint AS xid, e.id
    FROM (
        (SELECT p.xid, p.id FROM page p ORDER BY p.xid, p.id OFFSET %(size)s - 1)
        UNION ALL
        (SELECT (u.xid::text::bigint + 1)::text::xid8, -1 FROM unseen u ORDER BY u.xid OFFSET %(size)s - 1)
    ) e
    ORDER BY e.xid, e.id
    LIMIT 1
), fresh AS MATERIALIZED (
    SELECT p.tenant, p.xid, min(coalesce(CASE WHEN %(has_delays)s THEN p.delay_ms END, %(smallest)s)) AS delay_ms
    FROM page p
    GROUP BY p.tenant, p.xid
), pending AS MATERIALIZED (
    SELECT f.tenant, f.xid, f.delay_ms, c.last_taken_at
    FROM fresh f
    CROSS JOIN (SELECT {pipeline_start} AS start) p
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
    SELECT p.tenant, min(p.delay_ms) AS delay_ms, max(p.last_taken_at) AS last_taken_at
    FROM pending p
    WHERE %(every)s OR coalesce(
        pg_visible_in_snapshot(
            p.xid, (SELECT snapshot FROM {schema}.tails WHERE pipeline = %(pipeline)s AND kind = 'tail')
        ),
        true
    )
    GROUP BY p.tenant
)
SELECT (SELECT e.xid FROM edge e) AS until_xid,
       (SELECT e.id FROM edge e) AS until_id,
       EXISTS (SELECT FROM page) AS fresh,
       ARRAY(SELECT DISTINCT p.xid::text::bigint FROM pending p WHERE %(kind)s = 'base') AS open_xids,
       NULL::text AS tenant,
       NULL::bigint AS delay_ms,
       NULL::bigint AS last_ms
UNION ALL
SELECT NULL, NULL, NULL, NULL, q.tenant, q.delay_ms, (extract(epoch FROM q.last_taken_at) * 1000)::bigint
FROM waiting q
WHERE %(with_paused)s OR NOT EXISTS (
    SELECT FROM {schema}.pauses h WHERE h.pipeline = %(pipeline)s AND h.tenant IN ('', q.tenant)
)

-- name: begin_pass
-- A page of a pass: all of it reads one snapshot, and it writes nothing, because a transaction id of its own would count as
-- visible.
BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY

-- name: listen
-- The worker that polls is notified of commits that a source announces.
LISTEN taskbridge

-- name: notify
-- Announces a commit without records, to find out whether `listen` receives it.
SELECT pg_notify('taskbridge', '')
