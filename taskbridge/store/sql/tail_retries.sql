-- One page of the records that are to be tried again out of quarantine, after (`tenant`, `key`): for each tenant the last
-- key of the page, the smallest delay (`smallest` where a record has none, or the pipeline has no delays; null: none of
-- them means anything, for the records have changed since) and when its records were last taken, in milliseconds of the
-- Unix epoch. No row: there is none any more.
SELECT q.tenant,
       max(q.external_id) AS key,
       min(r.delay_ms) AS delay_ms,
       (extract(epoch FROM max(c.last_taken_at)) * 1000)::bigint AS last_ms
FROM (
    SELECT o.tenant, o.external_id, o.revision
    FROM {schema}.quarantine o
    WHERE o.pipeline = %(pipeline)s AND o.retry_at IS NOT NULL AND (o.tenant, o.external_id) > (%(tenant)s, %(key)s)
    ORDER BY o.tenant, o.external_id
    LIMIT %(size)s
) q
LEFT JOIN LATERAL (
    SELECT coalesce(CASE WHEN %(has_delays)s THEN i.delay_ms END, %(smallest)s) AS delay_ms
    FROM {schema}.records i
    WHERE i.source = %(source)s AND i.tenant = q.tenant AND i.key = q.external_id AND i.revision = q.revision
    LIMIT 1
) r ON true
LEFT JOIN LATERAL (
    SELECT s.last_taken_at
    FROM {schema}.sync_cursors s
    WHERE s.pipeline = %(pipeline)s AND s.tenant = q.tenant
    LIMIT 1
) c ON true
GROUP BY q.tenant
ORDER BY q.tenant
