-- Events, runs and records of each pipeline since a time.
SELECT pipeline, sum(events)::bigint AS events, count(*) AS runs, sum(records)::bigint AS records
FROM (
    SELECT pipeline, events, records FROM {schema}.runs WHERE began_at >= %(since)s::timestamptz LIMIT %(size)s
) r
GROUP BY pipeline
