-- Records in quarantine, oldest first, with how many there are beyond the limit. A row whose record has changed in the
-- source since, or is gone from it, means nothing and is left out.
SELECT c.tenant,
       c.external_id,
       c.revision,
       CASE
           WHEN c.retry_at IS NOT NULL THEN 'retrying'
           WHEN c.discarded_at IS NOT NULL THEN 'discarded'
           ELSE 'quarantined'
       END AS state,
       c.cause,
       c.reason,
       c.attempts,
       c.failing_since,
       c.quarantined_at,
       c.retry_at,
       c.discarded_at,
       count(*) OVER () AS found
FROM {schema}.quarantine c
JOIN {schema}.records i
    ON i.source = %(source)s AND i.tenant = c.tenant AND i.key = c.external_id AND i.revision = c.revision
WHERE c.pipeline = %(pipeline)s
  AND (%(tenant)s::text IS NULL OR c.tenant = %(tenant)s)
  AND (%(external_ids)s::text[] IS NULL OR c.external_id = ANY (%(external_ids)s))
  AND (%(reason)s::text IS NULL OR position(%(reason)s IN c.reason) > 0)
  AND (%(discarded)s OR c.discarded_at IS NULL)
ORDER BY c.quarantined_at, c.tenant, c.external_id
LIMIT %(limit)s
