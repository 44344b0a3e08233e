-- One step of prune: of the next rows of quarantine by key, delete the old ones whose record is gone or has changed. One
-- that is written anew meanwhile has another `quarantined_at`, and stays, as does one that a run has locked: it is not waited for.
WITH page AS MATERIALIZED (
    SELECT pipeline, tenant, external_id, revision, quarantined_at
    FROM {schema}.quarantine
    WHERE (pipeline, tenant, external_id) > ((%(after)s::text[])[1], (%(after)s::text[])[2], (%(after)s::text[])[3])
    ORDER BY pipeline, tenant, external_id
    LIMIT %(limit)s
), done AS MATERIALIZED (
    SELECT p.*
    FROM page p
    WHERE p.quarantined_at < %(before)s
      AND (%(pipeline)s::text IS NULL OR p.pipeline = %(pipeline)s)
      AND EXISTS (SELECT FROM {schema}.pipelines s WHERE s.pipeline = p.pipeline)
      AND NOT EXISTS (
          SELECT FROM {schema}.pipelines s
          JOIN {schema}.records r
              ON r.source = s.source AND r.tenant = p.tenant AND r.key = p.external_id AND r.revision = p.revision
          WHERE s.pipeline = p.pipeline
      )
), free AS MATERIALIZED (
    SELECT q.pipeline, q.tenant, q.external_id
    FROM done d
    JOIN {schema}.quarantine q
        ON q.pipeline = d.pipeline AND q.tenant = d.tenant AND q.external_id = d.external_id
        AND q.revision = d.revision AND q.quarantined_at = d.quarantined_at
    WHERE NOT %(dry_run)s
    FOR UPDATE OF q SKIP LOCKED
), deleted AS (
    DELETE FROM {schema}.quarantine q USING free d
    WHERE q.pipeline = d.pipeline AND q.tenant = d.tenant AND q.external_id = d.external_id
    RETURNING 1
)
SELECT 0 AS pruned,
       (SELECT count(*) FROM deleted) + (SELECT count(*) FROM done WHERE %(dry_run)s) AS quarantine,
       0 AS old,
       '{}'::text[] AS held,
       (
           SELECT ARRAY[pipeline, tenant, external_id] FROM page
           ORDER BY pipeline DESC, tenant DESC, external_id DESC LIMIT 1
       ) AS last,
       count(*) = %(limit)s AS more
FROM page
