-- What is pending, by the stored values, goes through quarantine with another try asked for, because the cursors are about
-- to pass it. A row that is there for this very revision stays; one of an earlier revision means nothing. Where a
-- tenant has no cursor all of its records are pending anyway.
WITH set_aside AS (
    INSERT INTO quarantine AS q (pipeline, tenant, external_id, revision, cause, reason, attempts, retry_at)
    SELECT s.pipeline, s.tenant, s.external_id, coalesce(r.revision, i.revision),
           'failed', 'pending when the database was rebased', 0, now()
    FROM record_states s
    JOIN sync_cursors c ON c.pipeline = s.pipeline AND c.tenant = s.tenant
    LEFT JOIN records r ON r.pipeline = s.pipeline AND r.message_id = s.external_id AND r.tenant = s.tenant
    LEFT JOIN invoices i ON r.id IS NULL AND i.tenant = s.tenant AND i.number = s.external_id
    WHERE s.state = 'pending'
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
SELECT pipeline, count(*) FROM set_aside GROUP BY pipeline ORDER BY pipeline
