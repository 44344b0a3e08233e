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
