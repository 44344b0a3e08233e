-- What fails in a pipeline, by the errors' texts: of up to `size` tenants whose last run failed, and of up to `size` records
-- in quarantine. `tenants` is how many tenants fail so; `sample` has up to 5 of both kinds.
SELECT error, sum(tenants)::bigint AS tenants, sum(quarantined)::bigint AS quarantined, min(since) AS since,
       max(last) AS last, (array_agg(DISTINCT tenant))[1:5] AS sample
FROM (
    (
        SELECT coalesce(last_error, 'no error was written down') AS error, tenant, 1 AS tenants, 0 AS quarantined,
               coalesce(failing_since, failed_at) AS since, failed_at AS last
        FROM {schema}.sync_cursors WHERE pipeline = %(pipeline)s AND failures > 0
        LIMIT %(size)s
    )
    UNION ALL
    (
        SELECT q.reason, q.tenant, 0, 1, coalesce(q.failing_since, q.quarantined_at), q.quarantined_at
        FROM (SELECT * FROM {schema}.quarantine WHERE pipeline = %(pipeline)s LIMIT %(size)s) q
        {its_record}
        WHERE q.discarded_at IS NULL AND q.retry_at IS NULL
    )
) e
GROUP BY error
ORDER BY 2 DESC, 3 DESC, error
LIMIT %(limit)s
