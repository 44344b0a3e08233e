-- One batch: what an operator took out of quarantine first, then what lies after the cursor; with where the cursor
-- stands. No row: the token does not own the cursor. One row with nulls for the record: nothing is pending, or the tenant
-- is held by a pause.
-- `aside`: quarantine has a row of the record, be it of an earlier revision; asked only where the tenant has any there.
-- A statement of its own, after the claim: its snapshot must not be older than the cursor it reads from. (In one
-- statement with the claim it could be: the claim may have waited for the cursor's row, the snapshot is taken before.)
-- Documents come as text, so that one which cannot be decoded costs no other. One that is stored in more than `small` bytes
-- stays behind, with its size in `stored`: a batch of those could fill the worker's memory. The size is read without the
-- document. With `small` below zero no document is read.
-- The range on (xid, id) is what the index serves; the two visibility tests make it exact.
SELECT c.sweeps, c.batch_limit, c.suspects, c.attempts, c.deaths, c.suspect_revision, c.outages, c.failing_since, p.held,
       p.size,
       coalesce(c.target, pg_current_snapshot())::text AS target,
       c.target IS NOT NULL AS resumed,
       r.id, r.xid::text AS xid, r.external_id, r.revision,
       CASE WHEN pg_column_size(r.document) <= %(small)s THEN r.document::text END AS document,
       CASE WHEN pg_column_size(r.document) > %(small)s THEN pg_column_size(r.document) END AS stored, r.retried,
       p.aside AND r.id IS NOT NULL AND EXISTS (
           SELECT FROM quarantine q
           WHERE q.pipeline = c.pipeline AND q.tenant = c.tenant AND q.external_id = r.external_id
       ) AS aside
FROM sync_cursors c
CROSS JOIN LATERAL (
    SELECT h.held, h.aside, CASE WHEN h.held THEN 0 ELSE least(%(limit)s, CASE WHEN %(narrowed)s THEN c.batch_limit END) END AS size
    FROM (
        SELECT EXISTS (SELECT FROM pauses WHERE pipeline = c.pipeline AND tenant IN ('', c.tenant)) AS held,
               EXISTS (SELECT FROM quarantine WHERE pipeline = c.pipeline AND tenant = c.tenant) AS aside
        OFFSET 0 -- computed once, and not for each record
    ) h
    OFFSET 0
) p
LEFT JOIN LATERAL (
    (
        SELECT i.id, i.xid, i.external_id, i.revision, i.document, true AS retried
        FROM quarantine q
        JOIN {rows} i ON {of_pipeline} i.tenant = q.tenant AND i.external_id = q.external_id AND i.revision = q.revision
        WHERE q.pipeline = c.pipeline AND q.tenant = c.tenant AND q.retry_at IS NOT NULL
        ORDER BY q.retry_at, i.id
        LIMIT p.size
    )
    UNION ALL
    (
        SELECT i.id, i.xid, i.external_id, i.revision, i.document, false
        FROM {rows} i
        WHERE {of_pipeline} i.tenant = c.tenant
          AND (i.xid, i.id) > (coalesce(c.at_xid, pg_snapshot_xmin(c.snapshot)), coalesce(c.at_id, -1))
          AND NOT pg_visible_in_snapshot(i.xid, c.snapshot)
          AND (c.target IS NULL OR pg_visible_in_snapshot(i.xid, c.target))
        ORDER BY i.xid, i.id
        LIMIT p.size
    )
    LIMIT p.size
) r ON true
WHERE c.pipeline = %(pipeline)s AND c.tenant = %(tenant)s AND c.owner = %(token)s
