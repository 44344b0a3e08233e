-- One step of prune, as prune_invoices.sql is, over the records of pipelines with criteria: each has one reader. What no
-- criterion matched stays until somebody gives it up.
WITH page AS MATERIALIZED (
    SELECT id, pipeline, tenant, message_id AS external_id, revision, xid,
           recorded_at < %(before)s AND (tenant IS NOT NULL OR discarded_at IS NOT NULL)
               AND (%(pipeline)s::text IS NULL OR pipeline = %(pipeline)s) AS old,
           discarded_at IS NOT NULL AS given_up,
           recorded_at < %(before)s AS any_old
    FROM records
    WHERE id > %(after)s
    ORDER BY id
    LIMIT %(limit)s
), discarded AS MATERIALIZED (
    SELECT p.id
    FROM page p
    CROSS JOIN LATERAL (
        SELECT
        FROM quarantine
        WHERE pipeline = p.pipeline AND tenant = p.tenant AND external_id = p.external_id
          AND revision = p.revision AND discarded_at IS NOT NULL AND retry_at IS NULL
        FOR UPDATE
    ) q
    WHERE p.old
), done AS MATERIALIZED (
    SELECT p.id, p.xid
    FROM page p
    LEFT JOIN sync_cursors c ON c.pipeline = p.pipeline AND c.tenant = p.tenant
    LEFT JOIN quarantine q
        ON q.pipeline = p.pipeline AND q.tenant = p.tenant AND q.external_id = p.external_id
        AND q.revision = p.revision
    LEFT JOIN discarded d ON d.id = p.id
    WHERE p.old AND p.id <> ALL (%(newest)s::bigint[]) AND CASE
        WHEN p.tenant IS NULL THEN p.given_up
        WHEN q.external_id IS NOT NULL THEN d.id IS NOT NULL
        WHEN c.snapshot IS NULL THEN false
        WHEN pg_visible_in_snapshot(p.xid, c.snapshot) THEN true
        WHEN c.target IS NOT NULL AND pg_visible_in_snapshot(p.xid, c.target)
             AND (p.xid, p.id) <= (c.at_xid, c.at_id) THEN true
        ELSE false
    END
), deleted AS (
    DELETE FROM records r USING done d
    WHERE NOT %(dry_run)s AND r.id = d.id AND r.xid = d.xid
    RETURNING r.pipeline, r.tenant, r.message_id
), forgotten AS (
    DELETE FROM quarantine q USING deleted d
    WHERE q.pipeline = d.pipeline AND q.tenant = d.tenant AND q.external_id = d.message_id
    RETURNING 1
)
SELECT (SELECT count(*) FROM deleted) + (SELECT count(*) FROM done WHERE %(dry_run)s) AS pruned,
       (SELECT count(*) FROM forgotten) AS quarantine,
       count(*) FILTER (WHERE old) AS old,
       max(id) AS last,
       count(*) = %(limit)s AND bool_or(any_old) AS more
FROM page
