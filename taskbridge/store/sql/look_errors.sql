-- What fails in a pipeline, by the kind of error: of up to `size` tenants whose last run failed, and of up to `size` records in
-- quarantine. `tenants` is how many tenants fail so; `error` is the last text, of `texts` different ones; `sample` has up to 5
-- tenants of both kinds. `cut`: there may be more of the kind, for so many were looked at.
SELECT kind, (array_agg(error ORDER BY last DESC NULLS LAST, error))[1] AS error, count(DISTINCT error) AS texts,
       sum(tenants)::bigint AS tenants, sum(quarantined)::bigint AS quarantined, min(since) AS since, max(last) AS last,
       (array_agg(DISTINCT tenant))[1:5] AS sample,
       sum(sum(tenants)) OVER () >= %(size)s OR sum(sum(quarantined)) OVER () >= %(size)s AS cut
FROM (
    SELECT {schema}.error_kind(error) AS kind, a.*
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
            FROM {schema}.quarantine q
            {its_record}
            WHERE q.pipeline = %(pipeline)s AND q.discarded_at IS NULL AND q.retry_at IS NULL
            LIMIT %(size)s
        )
    ) a
) e
GROUP BY kind
ORDER BY 4 DESC, 5 DESC, kind
LIMIT %(limit)s
