-- Somebody decided on records in quarantine: another try, or none ever. What left quarantine meanwhile is left alone.
UPDATE {schema}.quarantine q
SET retry_at = CASE WHEN %(retry)s THEN now() END,
    discarded_at = CASE WHEN NOT %(retry)s THEN coalesce(q.discarded_at, now()) END
FROM unnest(%(tenants)s::text[], %(external_ids)s::text[], %(revisions)s::bigint[])
    AS one (tenant, external_id, revision)
WHERE q.pipeline = %(pipeline)s
  AND q.tenant = one.tenant
  AND q.external_id = one.external_id
  AND q.revision = one.revision
RETURNING q.tenant, q.external_id
