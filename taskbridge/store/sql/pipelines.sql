-- Which pipelines and sources there are.

-- name: know_lock
-- Before a source gets another reader: batches of it whose writes were muted, and that are about to commit, come to their
-- end, and those after them see the reader.
SELECT pg_advisory_xact_lock({readers_key})

-- name: know_pipeline
-- The first time that a pipeline is seen: what it reads, and the snapshot at which its cursors begin; null: now. Where it is
-- there already, nothing changes. It is a statement after `know_lock`, so that `now` is after what that has waited for.
INSERT INTO {schema}.pipelines (pipeline, source, start)
VALUES (%(pipeline)s, %(source)s, coalesce(%(start)s::pg_snapshot, pg_current_snapshot()))
ON CONFLICT DO NOTHING

-- name: known_source
-- What a pipeline reads, if it was seen before.
SELECT source FROM {schema}.pipelines WHERE pipeline = %(pipeline)s

-- name: pipelines
-- The pipelines that were seen, and what each reads.
SELECT pipeline, source FROM {schema}.pipelines

-- name: sources
-- The sources that have records, from one to the next through the index.
WITH RECURSIVE sources AS (
    (SELECT source FROM {schema}.records ORDER BY source LIMIT 1)
    UNION ALL
    SELECT (SELECT r.source FROM {schema}.records r WHERE r.source > s.source ORDER BY r.source LIMIT 1)
    FROM sources s
    WHERE s.source IS NOT NULL
)
SELECT source FROM sources WHERE source IS NOT NULL

-- name: unread_sources
-- Of some sources, those that have records of tenants, or are adopted tables.
SELECT s.source
FROM unnest(%(sources)s::text[]) AS s (source)
WHERE EXISTS (SELECT FROM {schema}.records r WHERE r.source = s.source AND r.tenant <> '')
   OR EXISTS (SELECT FROM {schema}.adopted a WHERE a.source = s.source AND a.ended_at IS NULL)
ORDER BY s.source

-- name: snapshot_since
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

-- name: undeclared_pipelines
-- How many tenants each pipeline has that is not among `declared`, counted up to `most`.
SELECT p.pipeline, c.tenants
FROM {schema}.pipelines p
CROSS JOIN LATERAL (
    SELECT count(*) AS tenants FROM (SELECT FROM {schema}.sync_cursors WHERE pipeline = p.pipeline LIMIT %(most)s) counted
) c
WHERE p.pipeline <> ALL (%(declared)s) AND c.tenants > 0
ORDER BY p.pipeline

-- name: forget
-- Delete what is kept of a pipeline that is no more; its records stay, since others may read them. Cursors go before
-- quarantine, which is the order in which a run that is still on takes them, so that neither waits for the other in a circle.
WITH pipeline AS (
    DELETE FROM {schema}.pipelines WHERE pipeline = %(pipeline)s RETURNING 1
), cursors AS (
    DELETE FROM {schema}.sync_cursors WHERE pipeline = %(pipeline)s RETURNING 1
), quarantined AS (
    DELETE FROM {schema}.quarantine
    WHERE pipeline = %(pipeline)s AND (SELECT count(*) FROM cursors) >= 0 RETURNING 1
), tails AS (
    DELETE FROM {schema}.tails WHERE pipeline = %(pipeline)s
), runs AS (
    DELETE FROM {schema}.runs WHERE pipeline = %(pipeline)s
), minutes AS (
    DELETE FROM {schema}.run_minutes WHERE pipeline = %(pipeline)s
), pauses AS (
    DELETE FROM {schema}.pauses WHERE pipeline = %(pipeline)s
)
SELECT (SELECT count(*) FROM pipeline) AS pipelines, (SELECT count(*) FROM cursors) AS cursors,
       (SELECT count(*) FROM quarantined) AS quarantined

-- name: troubled
-- Tenants whose last run failed, those with the most failures first, and those with the most records in quarantine: up to
-- `limit` of each. At most `size` cursors and rows of quarantine are looked at.
(
    SELECT tenant
    FROM (
        SELECT tenant, failures FROM {schema}.sync_cursors WHERE pipeline = %(pipeline)s AND failures > 0 LIMIT %(size)s
    ) c
    ORDER BY failures DESC, tenant
    LIMIT %(limit)s
)
UNION
(
    SELECT tenant
    FROM (
        SELECT tenant FROM {schema}.quarantine
        WHERE pipeline = %(pipeline)s AND discarded_at IS NULL AND retry_at IS NULL
        LIMIT %(size)s
    ) q
    GROUP BY tenant
    ORDER BY count(*) DESC, tenant
    LIMIT %(limit)s
)
