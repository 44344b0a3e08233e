-- Quarantine and pauses, as operators use them.

-- name: quarantined
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

-- name: quarantine_mark
-- Somebody decided on records in quarantine: another try, or none ever. What left quarantine meanwhile is left alone. A row
-- that a run has locked is not waited for, since that run could wait for this statement next, which is a deadlock; `marked`
-- is false.
WITH wanted AS MATERIALIZED (
    SELECT q.pipeline, q.tenant, q.external_id, q.revision
    FROM unnest(%(tenants)s::text[], %(external_ids)s::text[], %(revisions)s::bigint[])
        AS one (tenant, external_id, revision)
    JOIN {schema}.quarantine q
        ON q.pipeline = %(pipeline)s AND q.tenant = one.tenant AND q.external_id = one.external_id
        AND q.revision = one.revision
), free AS MATERIALIZED (
    SELECT q.pipeline, q.tenant, q.external_id
    FROM wanted w
    JOIN {schema}.quarantine q
        ON q.pipeline = w.pipeline AND q.tenant = w.tenant AND q.external_id = w.external_id AND q.revision = w.revision
    FOR NO KEY UPDATE OF q SKIP LOCKED
), marked AS (
    UPDATE {schema}.quarantine q
    SET retry_at = CASE WHEN %(retry)s THEN now() END,
        discarded_at = CASE WHEN NOT %(retry)s THEN coalesce(q.discarded_at, now()) END
    FROM free f
    WHERE q.pipeline = f.pipeline AND q.tenant = f.tenant AND q.external_id = f.external_id
    RETURNING q.tenant, q.external_id
)
SELECT w.tenant, w.external_id, w.revision, m.external_id IS NOT NULL AS marked
FROM wanted w
LEFT JOIN marked m ON m.tenant = w.tenant AND m.external_id = w.external_id

-- name: pause
-- Pause a tenant, or with an empty tenant the whole pipeline. One that is paused stays so; a new reason takes the place
-- of the old one.
INSERT INTO {schema}.pauses AS p (pipeline, tenant, reason, paused_by)
VALUES (%(pipeline)s, %(tenant)s, %(reason)s, %(by)s)
ON CONFLICT (pipeline, tenant) DO UPDATE SET reason = coalesce(excluded.reason, p.reason)
RETURNING nullif(tenant, '') AS tenant, reason, paused_at, paused_by, paused_at < now() AS already

-- name: pauses
-- What is paused in a pipeline, of some tenants or (null) of all; the row without a tenant is the pipeline's own, and the last.
SELECT nullif(p.tenant, '') AS tenant, p.reason, p.paused_at, p.paused_by FROM {schema}.pauses p
WHERE p.pipeline = %(pipeline)s AND (%(tenants)s::text[] IS NULL OR p.tenant = ANY (%(tenants)s::text[] || ''::text))
ORDER BY p.tenant DESC

-- name: release
-- End a pause. No row: there was none.
DELETE FROM {schema}.pauses WHERE pipeline = %(pipeline)s AND tenant = %(tenant)s RETURNING tenant
