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
