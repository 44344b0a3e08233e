-- What is pending by the former cluster's ids goes into quarantine with another try asked for, because the cursors are about to
-- pass it. A row that is there for the same revision stays; one of an earlier revision is overwritten. Where a tenant has no
-- cursor and its pipeline began with everything, all of its records stay pending without this.
WITH quarantined AS (
    INSERT INTO {schema}.quarantine AS q (pipeline, tenant, external_id, revision, cause, reason, attempts, retry_at)
    SELECT s.pipeline, s.tenant, s.external_id, r.revision,
           'failed', 'pending when the database was rebased', 0, now()
    FROM {schema}.record_states s
    LEFT JOIN {schema}.pipelines p ON p.pipeline = s.pipeline
    JOIN {schema}.records r ON r.source = coalesce(p.source, s.pipeline) AND r.tenant = s.tenant AND r.key = s.external_id
    LEFT JOIN {schema}.sync_cursors c ON c.pipeline = s.pipeline AND c.tenant = s.tenant
    WHERE s.state = 'pending' AND (c.tenant IS NOT NULL OR coalesce(p.start::text, '1:1:') <> '1:1:')
    ON CONFLICT (pipeline, tenant, external_id) DO UPDATE
    SET revision = excluded.revision,
        cause = excluded.cause,
        reason = excluded.reason,
        attempts = excluded.attempts,
        quarantined_at = now(),
        failing_since = NULL,
        retry_at = excluded.retry_at,
        discarded_at = NULL
    WHERE q.revision <> excluded.revision
    RETURNING q.pipeline
)
SELECT pipeline, count(*) FROM quarantined GROUP BY pipeline ORDER BY pipeline
