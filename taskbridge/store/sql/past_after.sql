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
