-- Of each tenant of a list: records by state, up to `size` of each state, and the counters of its cursor. `known`: it has
-- records or a cursor. `pending_since`: when the oldest of the pending ones was written. `handled` is null where so many are
-- pending, or in quarantine, that they were not all counted. What the pipeline's start skipped is in no state, for nobody
-- handled it. Where a rebase has forgotten what that was, it counts as handled: the start's xmin is 1.
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
