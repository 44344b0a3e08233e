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
