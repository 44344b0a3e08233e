-- The run history and the audit log.

-- name: write_runs
-- Rows of runs that have ended. Each value is an array with an element for each run. The position is read from the cursor, as long
-- as the run owns it. A run whose advance did not take effect gets no row.
INSERT INTO {schema}.runs
    (pipeline, tenant, token, began_at, ended_at, reason, worker, events, burst_run, records, rejected, outcome, error,
     first_event_ms, snapshot, target, at_xid, at_id)
SELECT v.pipeline, v.tenant, v.token, n.now - v.seconds * interval '1 second', n.now, v.reason, v.worker, v.events,
       v.burst_run, v.records, v.rejected, v.outcome, v.error, v.first_event_ms, c.snapshot, c.target, c.at_xid, c.at_id
FROM (SELECT clock_timestamp() AS now) n
CROSS JOIN unnest(
    %(pipeline)s::text[],
    %(tenant)s::text[],
    %(token)s::text[],
    %(owner)s::text[],
    %(reason)s::text[],
    %(worker)s::text[],
    %(seconds)s::float8[],
    %(events)s::integer[],
    %(burst_run)s::integer[],
    %(records)s::integer[],
    %(rejected)s::integer[],
    %(outcome)s::text[],
    %(error)s::text[],
    %(first_event_ms)s::integer[],
    %(sweeps)s::bigint[]
) AS v (
    pipeline, tenant, token, owner, reason, worker, seconds, events, burst_run, records, rejected, outcome, error,
    first_event_ms, sweeps
)
LEFT JOIN {schema}.sync_cursors c ON c.pipeline = v.pipeline AND c.tenant = v.tenant AND c.owner = v.owner
WHERE v.sweeps IS NULL OR v.sweeps = c.sweeps
ON CONFLICT DO NOTHING

-- name: run_columns
-- A part of other queries: the columns shown for a run.
pipeline, tenant, token, began_at, ended_at, reason, nullif(worker, '') AS worker, events, burst_run, records, rejected, outcome,
error, first_event_ms

-- name: past_count
-- How many runs have ended since a time, from the sums per minute.
SELECT coalesce(sum(runs), 0)::bigint FROM {schema}.run_minutes WHERE minute >= %(since)s::timestamptz

-- name: past_lately
-- Whether any run of some pipelines ended within the last seconds; null if there is no history.
SELECT CASE WHEN EXISTS (SELECT FROM {schema}.runs) THEN EXISTS (
    SELECT FROM unnest(%(pipelines)s::text[]) AS p (pipeline)
    CROSS JOIN LATERAL (
        SELECT FROM {schema}.runs
        WHERE pipeline = p.pipeline COLLATE "C" AND ended_at >= now() - %(seconds)s * interval '1 second'
        LIMIT 1
    ) r
) END

-- name: past_noisy
-- Tenants with the highest value of one of the sums since a time, in a sample of the history: `percent` of its pages, and at most
-- `size` runs. The sums are those of the sample. Ties are ordered by the other sums.
SELECT pipeline, tenant, sum(events)::bigint AS events, count(*) AS runs, sum(records)::bigint AS records,
       count(*) FILTER (WHERE outcome = 'failed') AS failures,
       coalesce(sum(date_part('epoch', ended_at - began_at) * 1000), 0)::bigint AS run_ms,
       sum(count(*)) OVER ()::bigint AS looked
FROM (
    SELECT pipeline, tenant, events, records, outcome, began_at, ended_at
    FROM {schema}.runs TABLESAMPLE SYSTEM (%(percent)s)
    WHERE ended_at >= %(since)s::timestamptz AND (%(pipeline)s::text IS NULL OR pipeline = %(pipeline)s)
    LIMIT %(size)s
) r
GROUP BY pipeline, tenant
ORDER BY CASE %(by)s
             WHEN 'events' THEN sum(events)
             WHEN 'runs' THEN count(*)
             WHEN 'records' THEN sum(records)
             ELSE sum(date_part('epoch', ended_at - began_at) * 1000)
         END DESC, events DESC, runs DESC, records DESC, failures DESC, run_ms DESC, pipeline, tenant
LIMIT %(limit)s

-- name: past_of_tenant
-- The last runs of one tenant that began before a time, or before another run, the latest first; with `failed`, only those that
-- failed.
SELECT {run_columns}
FROM {schema}.runs
WHERE pipeline = %(pipeline)s AND tenant = %(tenant)s AND (NOT %(failed)s OR outcome = 'failed')
  AND (%(before)s::timestamptz IS NULL OR began_at < %(before)s) AND (%(token)s = '' OR token < %(token)s)
ORDER BY token DESC
LIMIT %(limit)s

-- name: past_of_all
-- The last runs of some pipelines that ended between two times, the latest first; with `failed`, only those that failed, for which
-- there is an index. Runs that ended exactly at the second time are included if their token is below `token`.
SELECT {run_columns}
FROM unnest(%(pipelines)s::text[]) AS p (name)
CROSS JOIN LATERAL (
    SELECT * FROM {schema}.runs
    WHERE pipeline = p.name COLLATE "C" AND (NOT %(failed)s OR outcome = 'failed') AND ended_at >= %(since)s::timestamptz
      AND (ended_at, token) < (%(before)s::timestamptz, %(token)s)
    ORDER BY ended_at DESC, token DESC
    LIMIT %(limit)s
) r
ORDER BY ended_at DESC, token DESC
LIMIT %(limit)s

-- name: past_failed
-- The last `size` failed runs of some pipelines since a time, by the kind of error: those with the most runs first. `error`: the
-- last text, of `texts` different ones; `tenants`: how many failed with it; `sample`: up to 5 of them.
SELECT pipeline, (array_agg(error ORDER BY ended_at DESC, token DESC))[1] AS error, count(DISTINCT error) AS texts,
       count(*) AS runs, count(DISTINCT tenant) AS tenants, min(ended_at) AS first, max(ended_at) AS last,
       (array_agg(DISTINCT tenant))[1:5] AS sample
FROM (
    SELECT r.pipeline, coalesce(r.error, 'no error was stored') AS error, r.ended_at, r.token, r.tenant
    FROM unnest(%(pipelines)s::text[]) AS p (name)
    CROSS JOIN LATERAL (
        SELECT * FROM {schema}.runs
        WHERE pipeline = p.name COLLATE "C" AND outcome = 'failed' AND ended_at >= %(since)s::timestamptz
        ORDER BY ended_at DESC
        LIMIT %(size)s
    ) r
    ORDER BY r.ended_at DESC
    LIMIT %(size)s
) r
GROUP BY pipeline, {schema}.error_kind(error)
ORDER BY runs DESC, pipeline, error

-- name: past_reader
-- The runs of a tenant since a record was written, up to the first one that moved the cursor past the record: that run read it
-- (`read`). A token contains the time of its run, so earlier runs are skipped by the key; `floor` is well before the record. At
-- most `size` runs are read. A run that died may have moved the cursor before.
SELECT {run_columns}, read
FROM (
    SELECT r.*, sum(r.read::integer) OVER (ORDER BY r.token ROWS UNBOUNDED PRECEDING) - r.read::integer AS reads
    FROM (
        SELECT r.*, coalesce((r.records > 0 OR r.reason = 'unknown') AND r.snapshot IS NOT NULL AND {schema}.is_handled(
                   %(xid)s::xid8, %(id)s, r.snapshot, r.target, r.at_xid, r.at_id
               ), false) AS read
        FROM {schema}.runs r
        WHERE r.pipeline = %(pipeline)s AND r.tenant = %(tenant)s AND r.token >= %(floor)s
          AND r.ended_at >= %(since)s::timestamptz
        ORDER BY r.token
        LIMIT %(size)s
    ) r
) r
WHERE reads = 0 AND (read OR ended_at >= %(changed_at)s::timestamptz)
ORDER BY token

-- name: past_saved
-- Events, runs and records of each of some pipelines over the last days, from the sums per minute.
SELECT p.pipeline, coalesce(sum(m.events), 0)::bigint AS events, coalesce(sum(m.runs), 0)::bigint AS runs,
       coalesce(sum(m.records), 0)::bigint AS records
FROM unnest(%(pipelines)s::text[]) AS p (pipeline)
LEFT JOIN {schema}.run_minutes m
    ON m.pipeline = p.pipeline COLLATE "C" AND m.minute >= now() - %(days)s * interval '1 day'
GROUP BY p.pipeline
ORDER BY p.pipeline

-- name: past_sums
-- Sums of the run history over each `width` since a time, of one pipeline or of all.
SELECT date_bin(%(width)s::interval, minute, '2000-01-01 00:00:00+00'::timestamptz) AS at,
       sum(runs)::bigint AS runs,
       sum(failed)::bigint AS failed,
       sum(events)::bigint AS events,
       sum(bursts)::bigint AS bursts,
       sum(records)::bigint AS records,
       sum(rejected)::bigint AS rejected,
       sum(run_ms)::bigint AS run_ms,
       ARRAY[{sums}] AS first_event_counts
FROM {schema}.run_minutes
WHERE minute >= %(since)s::timestamptz AND (%(pipeline)s::text IS NULL OR pipeline = %(pipeline)s)
GROUP BY 1
ORDER BY 1

-- name: sum_runs
-- Sums of a pipeline's runs for each complete minute: a run counts in the minute in which it ended. They begin at the first run
-- without a sum, and cover at most 20 minutes, so that no call takes long if no worker has done this for days.
WITH first AS MATERIALIZED (
    SELECT date_trunc('minute', ended_at) AS minute
    FROM {schema}.runs
    WHERE pipeline = %(pipeline)s AND ended_at >= coalesce(
        (SELECT max(minute) + interval '1 minute' FROM {schema}.run_minutes WHERE pipeline = %(pipeline)s), '-infinity'
    )
    ORDER BY ended_at
    LIMIT 1
), ended AS (
    SELECT date_trunc('minute', r.ended_at) AS minute, r.*,
           width_bucket(r.first_event_ms - 1, %(bounds)s::integer[]) AS bucket
    FROM first f
    JOIN {schema}.runs r ON r.pipeline = %(pipeline)s AND r.ended_at >= f.minute
        AND r.ended_at < f.minute + interval '20 minutes'
    WHERE r.ended_at < date_trunc('minute', now() - interval '5 seconds')
)
INSERT INTO {schema}.run_minutes
    (pipeline, minute, runs, failed, events, bursts, records, rejected, run_ms, first_event_ms_sum, first_event_counts)
SELECT %(pipeline)s, minute, count(*), count(*) FILTER (WHERE outcome = 'failed'), sum(events),
       count(*) FILTER (WHERE burst_run = 1), sum(records), sum(rejected),
       (extract(epoch FROM sum(ended_at - began_at)) * 1000)::bigint, coalesce(sum(first_event_ms), 0), ARRAY[{counts}]
FROM ended
GROUP BY minute
ON CONFLICT DO NOTHING

-- name: keep_runs
-- Partitions of the run history: create those of the next days, and drop old ones.
SELECT {schema}.keep_runs(%(days)s)

-- name: audit_note
-- Record one action.
INSERT INTO {schema}.audit (who, action, pipeline, tenant, key, detail)
VALUES (%(who)s, %(action)s, %(pipeline)s, %(tenant)s, %(key)s, %(detail)s)
