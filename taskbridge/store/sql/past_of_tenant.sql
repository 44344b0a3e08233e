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
