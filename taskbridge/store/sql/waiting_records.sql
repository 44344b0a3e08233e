-- What waits for one tenant of a pipeline with criteria: how many records, and of them the one with the smallest delay.
SELECT count(*) OVER () AS waiting, p.delay_ms, p.criterion
FROM (
    SELECT r.id, r.delay_ms, r.criterion
    FROM records r
    LEFT JOIN sync_cursors c ON c.pipeline = r.pipeline AND c.tenant = r.tenant
    WHERE r.pipeline = %(pipeline)s
      AND r.tenant = %(tenant)s
      AND r.xid >= coalesce(pg_snapshot_xmin(c.snapshot), '0'::xid8)
      AND (c.snapshot IS NULL OR NOT pg_visible_in_snapshot(r.xid, c.snapshot))
    UNION ALL
    SELECT r.id, r.delay_ms, r.criterion
    FROM quarantine q
    JOIN records r ON r.pipeline = q.pipeline AND r.message_id = q.external_id AND r.revision = q.revision
    WHERE q.pipeline = %(pipeline)s AND q.tenant = %(tenant)s AND q.retry_at IS NOT NULL
) p
ORDER BY p.delay_ms, p.id
LIMIT 1
