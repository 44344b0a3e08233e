-- Somebody decided on records in quarantine: another try, or none ever. What left quarantine meanwhile is left alone. A row that
-- a run has locked is not waited for, since that run could wait for this statement next, which is a deadlock; `marked` is false.
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
