-- Records with a key, up to `limit`, of some sources and tenants: once for each pipeline that reads them, with how they
-- stand there. `tenants` null: of all, which an index on the key must find.
SELECT r.source, r.tenant, r.key, r.revision, r.deleted, r.recorded_at, r.changed_at, r.reason AS unmatched,
       p.pipeline,
       CASE
           WHEN p.pipeline IS NULL THEN NULL
           WHEN q.retry_at IS NOT NULL THEN 'pending'
           WHEN q.discarded_at IS NOT NULL THEN 'discarded'
           WHEN q.external_id IS NOT NULL THEN 'quarantined'
           WHEN {schema}.is_handled(r.xid, r.id, coalesce(c.snapshot, p.start), c.target, c.at_xid, c.at_id)
               THEN 'handled'
           ELSE 'pending'
       END AS state,
       q.reason, q.attempts, c.failures, c.last_error
FROM (
    (
        SELECT l.* FROM {schema}.records l
        WHERE %(tenants)s::text[] IS NOT NULL
          AND l.source = ANY (%(sources)s::text[]) AND l.tenant = ANY (%(tenants)s::text[]) AND l.key = ANY (%(keys)s::text[])
        LIMIT %(limit)s
    )
    UNION ALL
    (
        SELECT l.* FROM {schema}.records l WHERE %(tenants)s::text[] IS NULL AND l.key = ANY (%(keys)s::text[]) LIMIT %(limit)s
    )
) r
LEFT JOIN {schema}.pipelines p ON p.source = r.source AND r.tenant <> ''
LEFT JOIN {schema}.quarantine q
    ON q.pipeline = p.pipeline AND q.tenant = r.tenant AND q.external_id = r.key AND q.revision = r.revision
LEFT JOIN {schema}.sync_cursors c ON c.pipeline = p.pipeline AND c.tenant = r.tenant
ORDER BY r.source, r.tenant, p.pipeline
