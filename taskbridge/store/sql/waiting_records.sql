-- What waits for one tenant of a pipeline with criteria: how many records, and of them the one with the smallest delay.
SELECT count(*) OVER () AS waiting, r.delay_ms, r.criterion
FROM records r
LEFT JOIN sync_cursors c ON c.pipeline = r.pipeline AND c.tenant = r.tenant
WHERE r.pipeline = %(pipeline)s
  AND r.tenant = %(tenant)s
  AND r.xid >= coalesce(pg_snapshot_xmin(c.snapshot), '0'::xid8)
  AND (c.snapshot IS NULL OR NOT pg_visible_in_snapshot(r.xid, c.snapshot))
ORDER BY r.delay_ms, r.id
LIMIT 1
