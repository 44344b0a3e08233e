-- Records in quarantine, oldest first, with how many there are beyond the limit.
SELECT q.tenant,
       q.external_id,
       q.revision,
       CASE
           WHEN q.retry_at IS NOT NULL THEN 'retrying'
           WHEN q.discarded_at IS NOT NULL THEN 'discarded'
           ELSE 'quarantined'
       END AS state,
       q.cause,
       q.reason,
       q.attempts,
       q.failing_since,
       q.quarantined_at,
       q.retry_at,
       q.discarded_at,
       count(*) OVER () AS found
FROM {schema}.quarantine q
{its_record}
WHERE q.pipeline = %(pipeline)s
  AND (%(tenant)s::text IS NULL OR q.tenant = %(tenant)s)
  AND (%(external_ids)s::text[] IS NULL OR q.external_id = ANY (%(external_ids)s))
  AND (%(reason)s::text IS NULL OR position(%(reason)s IN q.reason) > 0)
  AND (%(kind)s::text IS NULL OR {schema}.error_kind(q.reason) = %(kind)s)
  AND (%(since)s::timestamptz IS NULL OR q.quarantined_at >= %(since)s)
  AND (%(within)s::interval IS NULL OR q.quarantined_at >= now() - %(within)s::interval)
  AND (%(discarded)s OR q.discarded_at IS NULL)
ORDER BY q.quarantined_at, q.tenant, q.external_id
LIMIT %(limit)s
