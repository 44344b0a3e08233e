-- Where records with a key are, of one source and tenant or of all, and how they stand in each pipeline that reads them.
-- There is no index on the key alone, so without source and tenant all records are looked through.
SELECT r.source, r.tenant, r.key, r.revision, r.deleted, r.recorded_at, r.changed_at, r.reason AS unmatched,
       p.pipeline,
       (
           SELECT s.state FROM {schema}.record_states s
           WHERE s.pipeline = p.pipeline AND s.tenant = r.tenant AND s.external_id = r.key
       ) AS state,
       q.reason, q.attempts, c.failures, c.last_error
FROM (
    SELECT * FROM {schema}.records
    WHERE key = ANY (%(keys)s::text[]) AND (%(source)s::text IS NULL OR source = %(source)s)
      AND (%(tenant)s::text IS NULL OR tenant = %(tenant)s)
    ORDER BY source, tenant
    LIMIT %(limit)s
) r
LEFT JOIN {schema}.pipelines p ON p.source = r.source AND r.tenant <> ''
LEFT JOIN {schema}.quarantine q
    ON q.pipeline = p.pipeline AND q.tenant = r.tenant AND q.external_id = r.key AND q.revision = r.revision
LEFT JOIN {schema}.sync_cursors c ON c.pipeline = p.pipeline AND c.tenant = r.tenant
ORDER BY r.source, r.tenant, p.pipeline
