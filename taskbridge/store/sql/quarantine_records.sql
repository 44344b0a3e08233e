-- Records that cannot be handled go to quarantine, in the transaction that moves the cursor past them.
INSERT INTO {schema}.quarantine AS q
    (pipeline, tenant, external_id, revision, reason, attempts, cause, failing_since, quarantined_at)
SELECT %(pipeline)s, %(tenant)s, r.external_id, r.revision, r.reason, %(attempts)s, %(cause)s, %(failing_since)s,
       clock_timestamp()
FROM unnest(%(external_ids)s::text[], %(revisions)s::bigint[], %(reasons)s::text[])
    AS r (external_id, revision, reason)
ON CONFLICT (pipeline, tenant, external_id) DO UPDATE
SET revision = excluded.revision,
    reason = excluded.reason,
    attempts = excluded.attempts + CASE WHEN q.revision = excluded.revision THEN q.attempts ELSE 0 END,
    cause = excluded.cause,
    failing_since = excluded.failing_since,
    quarantined_at = excluded.quarantined_at,
    retry_at = NULL,
    discarded_at = CASE WHEN q.revision = excluded.revision THEN q.discarded_at END
