-- When the records of the next tenants of a pipeline, by name, were last taken, in milliseconds of the Unix epoch; null where
-- that is longer ago than `within_ms`. Rows with null come too, so that a page reads `limit` cursors and no more.
SELECT tenant,
       CASE WHEN last_taken_at > now() - %(within_ms)s * interval '1 millisecond'
            THEN (extract(epoch FROM last_taken_at) * 1000)::bigint END AS last_ms
FROM {schema}.sync_cursors
WHERE pipeline = %(pipeline)s AND tenant > %(after)s
ORDER BY tenant
LIMIT %(limit)s
