-- Read-only statements for status, metrics and the dashboard.

-- name: look_decisions
-- Operators' decisions about one record since a time, in order: to retry it, or to discard it. Only the last `size` actions are
-- considered. `key` null: it was about many records at once, possibly including this one.
SELECT at, who, action, key
FROM (SELECT * FROM {schema}.audit ORDER BY id DESC LIMIT %(size)s) a
WHERE pipeline = %(pipeline)s AND (tenant = %(tenant)s OR tenant IS NULL) AND (key = %(key)s OR key IS NULL)
  AND action IN ('retry', 'discard') AND at >= %(since)s::timestamptz
ORDER BY id

-- name: look_deliveries
-- Webhooks with this id, and the records that were written in the transaction that stored it and have not changed since, up
-- to `limit`. A row's `xmin` are the lower 32 bits of its transaction; the time says that the upper ones are right.
SELECT w.source, w.delivery, w.received_at, r.tenant, r.key
FROM {schema}.received w
CROSS JOIN (SELECT pg_snapshot_xmax(pg_current_snapshot())::text::numeric AS now) n
CROSS JOIN LATERAL (
    SELECT (floor(n.now / 4294967296) - CASE WHEN w.xmin::text::numeric >= n.now %% 4294967296 THEN 1 ELSE 0 END)
           * 4294967296 + w.xmin::text::numeric AS xid
) x
LEFT JOIN LATERAL (
    SELECT r.tenant, r.key FROM {schema}.records r
    WHERE r.source = w.source AND r.xid = x.xid::text::xid8 AND r.id > 0 AND r.changed_at = w.received_at
      AND x.xid >= 0
    LIMIT %(limit)s
) r ON true
WHERE w.delivery = %(delivery)s AND w.source = ANY (%(sources)s::text[])
LIMIT %(limit)s

-- name: look_errors
-- The failures of a pipeline, by the kind of error: of up to `size` tenants whose last run failed, and of up to `size` records in
-- quarantine. `tenants`: how many tenants fail with it; `error`: the last text, of `texts` different ones; `sample`: up to 5
-- tenants of both kinds. `cut`: there may be more, because only `size` were read.
SELECT kind, (array_agg(error ORDER BY last DESC NULLS LAST, error))[1] AS error, count(DISTINCT error) AS texts,
       sum(tenants)::bigint AS tenants, sum(quarantined)::bigint AS quarantined, min(since) AS since, max(last) AS last,
       (array_agg(DISTINCT tenant))[1:5] AS sample,
       sum(sum(tenants)) OVER () >= %(size)s OR sum(sum(quarantined)) OVER () >= %(size)s AS cut
FROM (
    SELECT {schema}.error_kind(error) AS kind, a.*
    FROM (
        (
            SELECT coalesce(last_error, 'no error was written down') AS error, tenant, 1 AS tenants, 0 AS quarantined,
                   coalesce(failing_since, failed_at) AS since, failed_at AS last
            FROM {schema}.sync_cursors WHERE pipeline = %(pipeline)s AND failures > 0
            LIMIT %(size)s
        )
        UNION ALL
        (
            SELECT q.reason, q.tenant, 0, 1, coalesce(q.failing_since, q.quarantined_at), q.quarantined_at
            FROM {schema}.quarantine q
            {its_record}
            WHERE q.pipeline = %(pipeline)s AND q.discarded_at IS NULL AND q.retry_at IS NULL
            LIMIT %(size)s
        )
    ) a
) e
GROUP BY kind
ORDER BY 4 DESC, 5 DESC, kind
LIMIT %(limit)s

-- name: look_failing
-- The next tenants by name whose last run failed.
SELECT tenant FROM {schema}.sync_cursors
WHERE pipeline = %(pipeline)s AND failures > 0 AND tenant > %(after)s
ORDER BY tenant
LIMIT %(limit)s

-- name: look_key_index
-- Whether there is an index on the key of records.
SELECT EXISTS (
    SELECT FROM pg_index i
    JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0] AND a.attname = 'key'
    WHERE i.indrelid = '{schema}.records'::regclass AND i.indisvalid AND i.indpred IS NULL
)

-- name: look_paused
-- The paused tenants of each pipeline by name, up to `size`, and whether the pipeline itself is paused.
SELECT n.pipeline, coalesce(array_agg(p.tenant ORDER BY p.tenant) FILTER (WHERE p.tenant <> ''), '{}') AS tenants,
       coalesce(bool_or(p.tenant = ''), false) AS whole
FROM unnest(%(pipelines)s::text[]) AS n (pipeline)
LEFT JOIN LATERAL (
    SELECT tenant FROM {schema}.pauses WHERE pipeline = n.pipeline COLLATE "C" ORDER BY tenant LIMIT %(size)s
) p ON true
GROUP BY n.pipeline

-- name: look_quarantine
-- Records in quarantine that were not discarded, of a pipeline or of one tenant, by tenant and key, up to `limit`.
SELECT q.pipeline, q.tenant, q.external_id AS key, q.revision,
       CASE WHEN q.retry_at IS NULL THEN 'quarantined' ELSE 'retrying' END AS state,
       q.cause, q.reason, q.attempts, q.quarantined_at AS at
FROM {schema}.quarantine q
{its_record}
WHERE q.pipeline = %(pipeline)s AND (%(tenant)s::text IS NULL OR q.tenant = %(tenant)s) AND q.discarded_at IS NULL
ORDER BY q.tenant, q.external_id
LIMIT %(limit)s

-- name: record_state
-- A part of other queries: the state of a record `r` with its row of quarantine `q` and its cursor `c`, in a pipeline `p`.
CASE
    WHEN q.retry_at IS NOT NULL THEN 'pending'
    WHEN q.discarded_at IS NOT NULL THEN 'discarded'
    WHEN q.external_id IS NOT NULL THEN 'quarantined'
    WHEN {schema}.is_handled(r.xid, r.id, coalesce(c.snapshot, p.start), c.target, c.at_xid, c.at_id) THEN 'handled'
    ELSE 'pending'
END

-- name: look_records
-- Records with a key, up to `limit`, of some sources and tenants: once for each pipeline that reads them, with their state there.
-- Null: of all, which reads all records unless there is an index on the key.
SELECT r.source, r.tenant, r.key, r.revision, r.deleted, r.recorded_at, r.changed_at, r.reason AS unmatched,
       p.pipeline,
       CASE WHEN p.pipeline IS NOT NULL THEN {record_state} END AS state,
       q.reason, q.attempts, c.failures, c.last_error
FROM (
    SELECT * FROM {schema}.records
    WHERE key = ANY (%(keys)s::text[]) AND (%(sources)s::text[] IS NULL OR source = ANY (%(sources)s::text[]))
      AND (%(tenants)s::text[] IS NULL OR tenant = ANY (%(tenants)s::text[]))
    LIMIT %(limit)s
) r
LEFT JOIN {schema}.pipelines p ON p.source = r.source AND r.tenant <> ''
LEFT JOIN {schema}.quarantine q
    ON q.pipeline = p.pipeline AND q.tenant = r.tenant AND q.external_id = r.key AND q.revision = r.revision
LEFT JOIN {schema}.sync_cursors c ON c.pipeline = p.pipeline AND c.tenant = r.tenant
ORDER BY r.source, r.tenant, p.pipeline

-- name: look_story
-- One record and its state in one pipeline: its position in the log, its row of quarantine, and how many webhooks arrived in the
-- transaction that wrote it, with the id of one of them.
SELECT r.revision, r.deleted, r.recorded_at, r.changed_at, r.xid::text AS xid, r.id, r.criterion,
       q.cause, q.reason, q.attempts, q.quarantined_at, q.discarded_at,
       {record_state} AS state,
       pg_visible_in_snapshot(r.xid, p.start) AS skipped,
       c.failures, c.last_error, c.owner,
       w.deliveries, w.delivery
FROM {schema}.records r
CROSS JOIN (SELECT {pipeline_start} AS start) p
LEFT JOIN {schema}.quarantine q
    ON q.pipeline = %(pipeline)s AND q.tenant = r.tenant AND q.external_id = r.key AND q.revision = r.revision
LEFT JOIN {schema}.sync_cursors c ON c.pipeline = %(pipeline)s AND c.tenant = r.tenant
CROSS JOIN LATERAL (
    SELECT count(*) AS deliveries, min(w.delivery) AS delivery
    FROM (
        SELECT w.delivery FROM {schema}.received w WHERE w.received_at = r.changed_at AND w.source = r.source LIMIT 1000
    ) w
) w
WHERE r.source = %(source)s AND r.tenant = %(tenant)s AND r.key = %(key)s

-- name: metric_counters
-- Per pipeline: the sums of its cursors' counters, for metrics. Reads every cursor once.
SELECT pipeline,
       sum(events)::bigint AS events,
       sum(bursts + found_bursts)::bigint AS bursts,
       sum(found_bursts)::bigint AS found_bursts,
       sum(runs)::bigint AS runs,
       sum(sweeps)::bigint AS sweeps,
       sum(records)::bigint AS records,
       sum(failed_runs)::bigint AS failed_runs,
       sum(first_event_ms_sum)::bigint AS first_event_ms_sum,
       ARRAY[{sums}] AS first_event_counts
FROM {schema}.sync_cursors
GROUP BY pipeline

-- name: backlog
-- The backlog of a pipeline, each number counted up to `size`: pending records of the tenants in a list and of the first paused
-- ones and, of other tenants, those to be retried, with the age of the oldest and its tenant (a record counts from its last
-- change); records in quarantine; and tenants whose last run failed, with one of them.
WITH listed AS MATERIALIZED (
    SELECT unnest(%(tenants)s::text[]) COLLATE "C" AS tenant
    UNION
    (SELECT tenant FROM {schema}.pauses WHERE pipeline = %(pipeline)s AND tenant <> '' ORDER BY tenant LIMIT 100)
), counted AS MATERIALIZED (
    (
        SELECT w.changed_at AS since, t.tenant
        FROM listed t
        CROSS JOIN LATERAL {pending} w
        LIMIT %(size)s
    )
    UNION ALL
    (
        SELECT i.changed_at, i.tenant
        FROM (
            SELECT * FROM {schema}.quarantine WHERE pipeline = %(pipeline)s AND retry_at IS NOT NULL LIMIT %(size)s
        ) q
        {its_record}
        WHERE NOT EXISTS (SELECT FROM listed l WHERE l.tenant = q.tenant)
    )
    LIMIT %(size)s
), failing AS MATERIALIZED (
    SELECT tenant FROM {schema}.sync_cursors WHERE pipeline = %(pipeline)s AND failures > 0 LIMIT %(size)s
), quarantined AS MATERIALIZED (
    SELECT FROM {schema}.quarantine q
    {its_record}
    WHERE q.pipeline = %(pipeline)s AND q.discarded_at IS NULL AND q.retry_at IS NULL
    LIMIT %(size)s
)
SELECT count(*) AS pending,
       coalesce(greatest(0, extract(epoch FROM now() - min(since))), 0)::float8 AS oldest_seconds,
       (SELECT tenant FROM counted ORDER BY since, tenant LIMIT 1) AS oldest_tenant,
       (SELECT count(*) FROM quarantined) AS quarantined,
       (SELECT count(*) FROM failing) AS failing,
       (SELECT min(tenant) FROM failing) AS fails
FROM counted

-- name: tenant_counts
-- For each tenant of a list: records by state, up to `size` of each state, and the counters of its cursor. `known`: it has records
-- or a cursor. `pending_since`: when the oldest pending record was written. `handled` is null if not all pending or quarantined
-- records were counted. Records skipped by the pipeline's start have no state, since they were not handled. After a rebase it is
-- unknown which those were, so they count as handled: the start's xmin is 1.
SELECT t.tenant,
       coalesce(w.records, 0) AS pending,
       w.since AS pending_since,
       CASE
           WHEN %(size)s::bigint IS NULL OR (w.records < %(size)s AND q.quarantined + q.discarded < %(size)s)
               THEN least(greatest(0, n.records - w.begun - q.begun), %(size)s)
       END AS handled,
       q.quarantined,
       q.discarded,
       coalesce(c.events, 0) AS events,
       coalesce(c.runs, 0) AS runs,
       coalesce(c.sweeps, 0) AS sweeps,
       coalesce(c.records, 0) AS records,
       coalesce(c.burst_events, 0) AS burst_events,
       coalesce(c.burst_runs, 0) AS burst_runs,
       c.first_event_ms,
       c.last_run_at,
       c.last_taken_at,
       coalesce(c.failures, 0) AS failures,
       c.last_error,
       CASE WHEN c.failures > 0 THEN {schema}.error_kind(c.last_error) END AS error_kind,
       c.failing_since,
       n.any OR c.tenant IS NOT NULL AS known
FROM (SELECT unnest(%(tenants)s::text[]) COLLATE "C" AS tenant) t
CROSS JOIN (
    SELECT CASE WHEN pg_snapshot_xmin(start) = '1'::xid8 THEN '1:1:' ELSE start END AS start
    FROM (SELECT {pipeline_start} AS start) s
) b
LEFT JOIN {schema}.sync_cursors c ON c.pipeline = %(pipeline)s AND c.tenant = t.tenant
CROSS JOIN LATERAL (
    SELECT count(*) AS records,
           EXISTS (SELECT FROM {schema}.records r WHERE r.source = %(source)s AND r.tenant = t.tenant) AS any
    FROM (
        SELECT FROM {schema}.records r
        WHERE r.source = %(source)s AND r.tenant = t.tenant
          AND r.xid >= pg_snapshot_xmin(b.start) AND NOT pg_visible_in_snapshot(r.xid, b.start)
        LIMIT 3 * %(size)s::bigint
    ) counted
) n
CROSS JOIN LATERAL (
    SELECT count(*) AS records, min(changed_at) AS since,
           count(*) FILTER (WHERE NOT pg_visible_in_snapshot(xid, b.start)) AS begun
    FROM (
        SELECT w.xid, w.changed_at FROM {pending} w
        WHERE NOT EXISTS (
            SELECT FROM {schema}.quarantine q
            WHERE q.pipeline = %(pipeline)s AND q.tenant = t.tenant AND q.external_id = w.key
              AND q.revision = w.revision AND q.retry_at IS NULL
        )
        LIMIT %(size)s
    ) counted
) w
CROSS JOIN LATERAL (
    SELECT count(*) FILTER (WHERE a.discarded_at IS NULL) AS quarantined,
           count(*) FILTER (WHERE a.discarded_at IS NOT NULL) AS discarded,
           count(*) FILTER (WHERE NOT pg_visible_in_snapshot(a.xid, b.start)) AS begun
    FROM (
        SELECT q.discarded_at, i.xid
        FROM {schema}.quarantine q
        {its_record}
        WHERE q.pipeline = %(pipeline)s AND q.tenant = t.tenant AND q.retry_at IS NULL
        LIMIT %(size)s
    ) a
) q
ORDER BY 1

-- name: tenants_from
-- Tenants of a pipeline by name, from `first` on and before `until` (null: to the end), but for `but`, that have records or a
-- cursor. The recursion goes through the index from one to the next.
WITH RECURSIVE recorded AS (
    (
        SELECT r.tenant, 1 AS number FROM {schema}.records r
        WHERE r.source = %(source)s AND r.tenant >= %(first)s AND r.tenant <> %(but)s
          AND (%(until)s::text IS NULL OR r.tenant < %(until)s)
        ORDER BY r.tenant LIMIT 1
    )
    UNION ALL
    SELECT (
        SELECT r.tenant FROM {schema}.records r
        WHERE r.source = %(source)s AND r.tenant > t.tenant AND (%(until)s::text IS NULL OR r.tenant < %(until)s)
        ORDER BY r.tenant LIMIT 1
    ), t.number + 1
    FROM recorded t
    WHERE t.tenant IS NOT NULL AND t.number < %(limit)s
)
SELECT tenant FROM recorded WHERE tenant IS NOT NULL
UNION
(
    SELECT tenant FROM {schema}.sync_cursors
    WHERE pipeline = %(pipeline)s AND tenant >= %(first)s AND tenant <> %(but)s
      AND (%(until)s::text IS NULL OR tenant < %(until)s)
    ORDER BY tenant LIMIT %(limit)s
)
ORDER BY tenant
LIMIT %(limit)s

-- name: where_connected
-- The cluster and the database of a session.
SELECT system_identifier::text, current_database() FROM pg_control_system()

-- name: pending_before
-- For each tenant of a list, how many of its records committed before a snapshot are pending. Tenants without any are left out.
SELECT t.tenant, w.records
FROM (SELECT unnest(%(tenants)s::text[]) COLLATE "C" AS tenant) t
CROSS JOIN LATERAL (
    SELECT count(*) AS records FROM {pending} w WHERE pg_visible_in_snapshot(w.xid, %(snapshot)s::pg_snapshot)
) w
WHERE w.records > 0
ORDER BY t.tenant

-- name: delivery_counts
-- How many deliveries are in the journal, and how many of them repeat a delivery of the same revision.
SELECT count(*) AS deliveries,
       count(*) - count(DISTINCT (tenant, external_id, revision)) AS duplicates
FROM {schema}.deliveries
WHERE pipeline = %(pipeline)s
