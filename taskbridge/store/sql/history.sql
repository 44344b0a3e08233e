-- The run history and the audit log.

-- name: hold_history
-- Whether somebody keeps the run history locked: then this fails.
LOCK TABLE {schema}.runs IN ROW EXCLUSIVE MODE NOWAIT

-- name: noted
-- After the advances of `moves_cursor`: each run's row of the history. A run of several batches has one row. It is a part of
-- the statement that moves the cursors, so it is there exactly if what it says took effect. `c` is a cursor as it was before:
-- it has the events that no row has yet.
, noted AS (
    INSERT INTO {schema}.runs AS r
        (pipeline, tenant, token, began_at, ended_at, reason, worker, events, burst_run, records, rejected, outcome,
         first_event_ms, began_sweeps, sweeps, snapshot, target, at_xid, at_id)
    SELECT v.pipeline, v.tenant, v.token, v.last_run_at, clock_timestamp(), v.reason, v.worker,
           least(c.unnoted_events, 2147483647), CASE WHEN c.unnoted_burst THEN 1 ELSE v.burst_run END,
           v.taken, v.rejected, 'handled', v.first_ms, v.began_sweeps, v.sweeps, v.snapshot, v.target, v.at_xid, v.at_id
    FROM moved v
    JOIN {schema}.sync_cursors c ON c.pipeline = v.pipeline AND c.tenant = v.tenant
    WHERE v.reason IS NOT NULL
    {noted_again}
)

-- name: noted_again
-- A part of `noted`: the run may have a row, of an earlier batch, or since it failed. Else nothing asks for one, for that
-- costs half as much again as the row.
ON CONFLICT (pipeline, tenant, token, began_at) DO UPDATE
SET ended_at = excluded.ended_at,
    events = r.events + excluded.events,
    records = r.records + excluded.records,
    rejected = r.rejected + excluded.rejected,
    first_event_ms = coalesce(r.first_event_ms, excluded.first_event_ms),
    sweeps = excluded.sweeps,
    snapshot = excluded.snapshot,
    target = excluded.target,
    at_xid = excluded.at_xid,
    at_id = excluded.at_id

-- name: past_after
-- The first run of a tenant that ended after a time, took records and did not fail; of the last `size` runs.
SELECT pipeline, tenant, token, began_at, ended_at, reason, worker, events, burst_run, records, rejected, outcome, error,
       first_event_ms
FROM (
    SELECT * FROM {schema}.runs
    WHERE pipeline = %(pipeline)s AND tenant = %(tenant)s
    ORDER BY token DESC
    LIMIT %(size)s
) r
WHERE ended_at >= %(at)s::timestamptz AND outcome = 'handled' AND records > 0
ORDER BY token
LIMIT 1

-- name: past_any
-- Whether the run history has any run.
SELECT EXISTS (SELECT FROM {schema}.runs)

-- name: past_between
-- The last runs that began between two times, of one pipeline or of all, the last one first. The index on the time finds
-- them; up to `size` are looked at, the last ones. Of those that began at the second time, the ones below `token` are among
-- them. The second time has a condition of its own, since a BRIN index cannot use a comparison of rows.
SELECT pipeline, tenant, token, began_at, ended_at, reason, worker, events, burst_run, records, rejected, outcome, error,
       {schema}.error_kind(error) AS error_kind, first_event_ms
FROM (
    SELECT * FROM {schema}.runs
    WHERE began_at >= %(since)s::timestamptz AND began_at <= %(before)s::timestamptz
      AND (began_at, token) < (%(before)s::timestamptz, %(token)s)
      AND (%(pipeline)s::text IS NULL OR pipeline = %(pipeline)s) AND (NOT %(failed)s OR outcome = 'failed')
    ORDER BY began_at DESC, token DESC
    LIMIT %(size)s
) r
ORDER BY began_at DESC, token DESC
LIMIT %(limit)s

-- name: past_count
-- How many runs began since a time, or how many of them failed, of one pipeline or of all, as the sums of the minutes say.
SELECT coalesce(sum(CASE WHEN %(failed)s THEN failed ELSE runs END), 0)::bigint
FROM {schema}.run_minutes
WHERE minute >= %(since)s::timestamptz AND (%(pipeline)s::text IS NULL OR pipeline = %(pipeline)s)

-- name: past_first
-- The first run of the burst to which a run belongs.
SELECT pipeline, tenant, token, began_at, ended_at, reason, worker, events, burst_run, records, rejected, outcome, error,
       first_event_ms
FROM (
    SELECT * FROM {schema}.runs
    WHERE pipeline = %(pipeline)s AND tenant = %(tenant)s AND token <= %(token)s
    ORDER BY token DESC
    LIMIT %(size)s
) r
WHERE burst_run = 1
ORDER BY token DESC
LIMIT 1

-- name: past_lately
-- Whether any run ended within the last seconds; null where there is no history.
SELECT CASE WHEN EXISTS (SELECT FROM {schema}.runs)
    THEN EXISTS (SELECT FROM {schema}.runs WHERE ended_at >= now() - %(seconds)s * interval '1 second')
END

-- name: past_minutes
-- The last minutes before a time in which runs began, or runs that failed, of one pipeline or of all.
SELECT minute, sum(CASE WHEN %(failed)s THEN failed ELSE runs END)::bigint AS runs
FROM {schema}.run_minutes
WHERE minute < %(before)s::timestamptz AND minute >= %(since)s::timestamptz
  AND (%(pipeline)s::text IS NULL OR pipeline = %(pipeline)s) AND (NOT %(failed)s OR failed > 0)
GROUP BY minute
ORDER BY minute DESC
LIMIT %(limit)s

-- name: past_noisy
-- Tenants that caused the most since a time, by one of the sums, of a part of the pages of the history: `percent` of them,
-- and of `size` runs at the most. The sums are those of the part. Of equal ones those come first that have more of the others.
SELECT pipeline, tenant, sum(events)::bigint AS events, count(*) AS runs, sum(records)::bigint AS records,
       count(*) FILTER (WHERE outcome = 'failed') AS failures,
       coalesce(sum(date_part('epoch', ended_at - began_at) * 1000), 0)::bigint AS run_ms,
       sum(count(*)) OVER ()::bigint AS looked
FROM (
    SELECT pipeline, tenant, events, records, outcome, began_at, ended_at
    FROM {schema}.runs TABLESAMPLE SYSTEM (%(percent)s)
    WHERE began_at >= %(since)s::timestamptz AND (%(pipeline)s::text IS NULL OR pipeline = %(pipeline)s)
      AND (NOT %(failed)s OR outcome = 'failed')
    LIMIT %(size)s
) r
GROUP BY pipeline, tenant
ORDER BY CASE %(by)s
             WHEN 'events' THEN sum(events)
             WHEN 'runs' THEN count(*)
             WHEN 'records' THEN sum(records)
             WHEN 'failures' THEN count(*) FILTER (WHERE outcome = 'failed')
             ELSE sum(date_part('epoch', ended_at - began_at) * 1000)
         END DESC, events DESC, runs DESC, records DESC, failures DESC, run_ms DESC, pipeline, tenant
LIMIT %(limit)s

-- name: past_of_tenant
-- The last runs of one tenant before a time, the last one first; with `failed` those that failed, of the last `size` runs.
SELECT pipeline, tenant, token, began_at, ended_at, reason, worker, events, burst_run, records, rejected, outcome, error,
       first_event_ms
FROM (
    SELECT * FROM {schema}.runs
    WHERE pipeline = %(pipeline)s AND tenant = %(tenant)s
      AND (%(before)s::timestamptz IS NULL OR began_at < %(before)s)
    ORDER BY token DESC
    LIMIT %(size)s
) r
WHERE NOT %(failed)s OR outcome = 'failed'
ORDER BY token DESC
LIMIT %(limit)s

-- name: past_rates
-- Events, runs and records of each pipeline since a time.
SELECT pipeline, sum(events)::bigint AS events, count(*) AS runs, sum(records)::bigint AS records
FROM (
    SELECT pipeline, events, records FROM {schema}.runs WHERE began_at >= %(since)s::timestamptz LIMIT %(size)s
) r
GROUP BY pipeline

-- name: past_reader
-- The runs of a tenant since a record was written, up to the first one after which the record lay behind the cursor: that
-- run read it. `read`: it is that one. A token tells when its run was made, so runs of before are passed over by the key;
-- `floor` lies well before the record. Up to `size` runs are looked at.
SELECT pipeline, tenant, token, began_at, ended_at, reason, worker, events, burst_run, records, rejected, outcome, error,
       first_event_ms, read
FROM (
    SELECT r.*, sum(r.read::integer) OVER (ORDER BY r.token ROWS UNBOUNDED PRECEDING) - r.read::integer AS reads
    FROM (
        SELECT r.*, coalesce(r.records > 0 AND r.snapshot IS NOT NULL AND {schema}.is_handled(
                   %(xid)s::xid8, %(id)s, r.snapshot, r.target, r.at_xid, r.at_id
               ), false) AS read
        FROM {schema}.runs r
        WHERE r.pipeline = %(pipeline)s AND r.tenant = %(tenant)s AND r.token >= %(floor)s
          AND r.began_at >= %(since)s::timestamptz
        ORDER BY r.token
        LIMIT %(size)s
    ) r
) r
WHERE reads = 0 AND (read OR ended_at >= %(changed_at)s::timestamptz)
ORDER BY token
LIMIT %(limit)s

-- name: past_summed
-- The last minute of each pipeline that has sums, or of one pipeline. Null: it has none.
SELECT p.pipeline, (SELECT max(m.minute) FROM {schema}.run_minutes m WHERE m.pipeline = p.pipeline) AS minute
FROM {schema}.pipelines p
WHERE %(pipeline)s::text IS NULL OR p.pipeline = %(pipeline)s

-- name: past_sums
-- Sums of the run history over each `width` between two times, of one pipeline or of all.
SELECT date_bin(%(width)s::interval, minute, '2000-01-01 00:00:00+00'::timestamptz) AS at,
       sum(runs)::bigint AS runs,
       sum(failed)::bigint AS failed,
       sum(events)::bigint AS events,
       sum(bursts)::bigint AS bursts,
       sum(records)::bigint AS records,
       sum(rejected)::bigint AS rejected,
       sum(run_ms)::bigint AS run_ms,
       sum(first_event_ms_sum)::bigint AS first_event_ms_sum,
       ARRAY[{sums}] AS first_event_counts
FROM {schema}.run_minutes
WHERE minute >= %(since)s::timestamptz AND (%(until)s::timestamptz IS NULL OR minute < %(until)s)
  AND (%(pipeline)s::text IS NULL OR pipeline = %(pipeline)s)
GROUP BY 1
ORDER BY 1

-- name: sum_runs
-- Sums of a pipeline's runs for each minute that is over. A run counts where it began, so each minute is summed again in
-- which a run began that has ended lately, however long it took. Where no worker has summed for long, a call sums a part:
-- what ended until 20 minutes after the first run that has no sum. So each call takes one more run at the least, and no call
-- takes them all.
WITH last AS MATERIALIZED (
    SELECT max(minute) AS minute FROM {schema}.run_minutes WHERE pipeline = %(pipeline)s
), part AS MATERIALIZED (
    SELECT coalesce(l.minute - interval '10 minutes', '-infinity') AS since,
           coalesce(f.ended_at + interval '20 minutes', 'infinity') AS until
    FROM last l
    LEFT JOIN LATERAL (
        SELECT r.ended_at FROM {schema}.runs r
        WHERE r.pipeline = %(pipeline)s AND r.began_at >= coalesce(l.minute + interval '1 minute', '-infinity')
        ORDER BY r.began_at
        LIMIT 1
    ) f ON true
), minutes AS MATERIALIZED (
    SELECT DISTINCT date_trunc('minute', r.began_at) AS minute
    FROM {schema}.runs r
    WHERE r.pipeline = %(pipeline)s AND r.ended_at >= (SELECT since FROM part) AND r.ended_at < (SELECT until FROM part)
      AND r.began_at < date_trunc('minute', now())
), found AS MATERIALIZED (
    SELECT m.minute, r.outcome, r.events, r.burst_run, r.records, r.rejected,
           extract(epoch FROM r.ended_at - r.began_at) * 1000 AS run_ms,
           r.first_event_ms, width_bucket(r.first_event_ms - 1, %(bounds)s::integer[]) AS bucket
    FROM minutes m
    CROSS JOIN LATERAL (
        SELECT * FROM {schema}.runs a
        WHERE a.pipeline = %(pipeline)s AND a.began_at >= m.minute AND a.began_at < m.minute + interval '1 minute'
    ) r
), sums AS (
    SELECT minute, count(*) AS runs, count(*) FILTER (WHERE outcome = 'failed') AS failed, sum(events) AS events,
           count(*) FILTER (WHERE burst_run = 1) AS bursts, sum(records) AS records, sum(rejected) AS rejected,
           sum(run_ms)::bigint AS run_ms, coalesce(sum(first_event_ms), 0) AS first_event_ms_sum
    FROM found GROUP BY minute
), in_buckets AS (
    SELECT minute, bucket, count(*)::integer AS bursts FROM found WHERE bucket IS NOT NULL GROUP BY minute, bucket
), counts AS (
    SELECT s.minute, array_agg(coalesce(b.bursts, 0) ORDER BY n) AS counts
    FROM sums s
    CROSS JOIN generate_series(0, cardinality(%(bounds)s::integer[])) n
    LEFT JOIN in_buckets b ON b.minute = s.minute AND b.bucket = n
    GROUP BY s.minute
)
INSERT INTO {schema}.run_minutes AS m
    (pipeline, minute, runs, failed, events, bursts, records, rejected, run_ms, first_event_ms_sum, first_event_counts)
SELECT %(pipeline)s, s.minute, s.runs, s.failed, s.events, s.bursts, s.records, s.rejected, s.run_ms, s.first_event_ms_sum,
       c.counts
FROM sums s JOIN counts c ON c.minute = s.minute
ON CONFLICT (pipeline, minute) DO UPDATE
SET runs = excluded.runs,
    failed = excluded.failed,
    events = excluded.events,
    bursts = excluded.bursts,
    records = excluded.records,
    rejected = excluded.rejected,
    run_ms = excluded.run_ms,
    first_event_ms_sum = excluded.first_event_ms_sum,
    first_event_counts = excluded.first_event_counts
WHERE (m.runs, m.failed, m.records, m.rejected, m.run_ms)
    IS DISTINCT FROM (excluded.runs, excluded.failed, excluded.records, excluded.rejected, excluded.run_ms)

-- name: keep_runs
-- Partitions of the run history: the next days', and none that is too old.
SELECT {schema}.keep_runs(%(days)s)

-- name: audit_last
-- The last actions, the last one first, before a row's number.
SELECT id, at, who, action, pipeline, tenant, key, detail FROM {schema}.audit
WHERE %(before)s::bigint IS NULL OR id < %(before)s
ORDER BY id DESC
LIMIT %(limit)s

-- name: audit_note
-- Write down one action.
INSERT INTO {schema}.audit (who, action, pipeline, tenant, key, detail)
VALUES (%(who)s, %(action)s, %(pipeline)s, %(tenant)s, %(key)s, %(detail)s)
