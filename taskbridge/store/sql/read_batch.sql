-- One batch after the cursor, with where the cursor stands. No row: the token does not own the cursor. One row with
-- nulls for the record: nothing is pending.
-- A statement of its own, after the claim: its snapshot must not be older than the cursor it reads from. (In one
-- statement with the claim it could be: the claim may have waited for the cursor's row, the snapshot is taken before.)
-- The range on (xid, id) is what the index serves; the two visibility tests make it exact.
SELECT c.sweeps,
       coalesce(c.target, pg_current_snapshot())::text AS target,
       c.target IS NOT NULL AS resumed,
       r.id, r.xid::text AS xid, r.external_id, r.revision, r.document
FROM sync_cursors c
LEFT JOIN LATERAL (
    SELECT i.id, i.xid, i.external_id, i.revision, i.document
    FROM {rows} i
    WHERE {of_pipeline} i.tenant = c.tenant
      AND (i.xid, i.id) > (coalesce(c.at_xid, pg_snapshot_xmin(c.snapshot)), coalesce(c.at_id, -1))
      AND NOT pg_visible_in_snapshot(i.xid, c.snapshot)
      AND (c.target IS NULL OR pg_visible_in_snapshot(i.xid, c.target))
    ORDER BY i.xid, i.id
    LIMIT %(limit)s
) r ON true
WHERE c.pipeline = %(pipeline)s AND c.tenant = %(tenant)s AND c.owner = %(token)s
