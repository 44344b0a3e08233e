-- Sums of a pipeline's runs for each minute that is over. A run counts where it began, so each minute is summed again in which
-- a run began that has ended lately, however long it took. Where no worker has summed for long, a call sums a part: what ended
-- until 20 minutes after the first run that has no sum. So each call takes one more run at the least, and no call takes them all.
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
