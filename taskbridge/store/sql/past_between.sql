-- The last runs that began between two times, of one pipeline or of all, the last one first. The index on the time finds
-- them; up to `size` are looked at, the last ones. Of those that began at the second time, the ones below `token` are among them.
-- The second time has a condition of its own, since a BRIN index cannot use a comparison of rows.
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
