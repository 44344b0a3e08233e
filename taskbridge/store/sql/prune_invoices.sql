-- One step of prune: of the next invoices by id, delete those that are old and that every pipeline has handled or
-- discarded, with what quarantine holds of them.
-- A discarded one is locked, so that nobody asks for another try meanwhile. An invoice that changes meanwhile has
-- another xid when the deletion gets to it, and stays.
-- Later ids are younger, but for a long transaction; so a page without an old row is the last one for this time.
WITH page AS MATERIALIZED (
    SELECT id, tenant, number AS external_id, revision, xid, recorded_at < %(before)s AS old
    FROM invoices
    WHERE id > %(after)s
    ORDER BY id
    LIMIT %(limit)s
), discarded AS MATERIALIZED (
    SELECT q.*
    FROM page p
    CROSS JOIN LATERAL (
        SELECT pipeline, tenant, external_id
        FROM quarantine
        WHERE pipeline = ANY (%(readers)s::text[]) AND tenant = p.tenant AND external_id = p.external_id
          AND revision = p.revision AND discarded_at IS NOT NULL AND retry_at IS NULL
        FOR UPDATE
    ) q
    WHERE p.old
), done AS MATERIALIZED (
    SELECT p.id, p.xid
    FROM page p
    WHERE p.old AND NOT EXISTS (
        SELECT FROM unnest(%(readers)s::text[]) AS reader (pipeline)
        LEFT JOIN sync_cursors c ON c.pipeline = reader.pipeline AND c.tenant = p.tenant
        LEFT JOIN quarantine q
            ON q.pipeline = reader.pipeline AND q.tenant = p.tenant AND q.external_id = p.external_id
            AND q.revision = p.revision
        LEFT JOIN discarded d
            ON d.pipeline = reader.pipeline AND d.tenant = p.tenant AND d.external_id = p.external_id
        WHERE CASE
            WHEN q.external_id IS NOT NULL THEN d.external_id IS NULL
            WHEN c.snapshot IS NULL THEN true
            WHEN pg_visible_in_snapshot(p.xid, c.snapshot) THEN false
            WHEN c.target IS NOT NULL AND pg_visible_in_snapshot(p.xid, c.target)
                 AND (p.xid, p.id) <= (c.at_xid, c.at_id) THEN false
            ELSE true
        END
    )
), deleted AS (
    DELETE FROM invoices i USING done d
    WHERE NOT %(dry_run)s AND i.id = d.id AND i.xid = d.xid
    RETURNING i.tenant, i.number
), forgotten AS (
    DELETE FROM quarantine q USING deleted d
    WHERE q.pipeline = ANY (%(readers)s::text[]) AND q.tenant = d.tenant AND q.external_id = d.number
    RETURNING 1
)
SELECT (SELECT count(*) FROM deleted) + (SELECT count(*) FROM done WHERE %(dry_run)s) AS pruned,
       (SELECT count(*) FROM forgotten) AS quarantine,
       count(*) FILTER (WHERE old) AS old,
       max(id) AS last,
       count(*) = %(limit)s AND bool_or(old) AS more
FROM page
