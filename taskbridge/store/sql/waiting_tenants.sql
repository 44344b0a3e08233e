-- Tenants of a pipeline with criteria that have records to take: the smallest delay among those records, and when the
-- tenant's records were last taken, in milliseconds of the Unix epoch. All of them, or only those that are due.
-- The recursion steps from tenant to tenant through the index.
WITH RECURSIVE tenants AS (
    (SELECT r.tenant FROM records r WHERE r.pipeline = %(pipeline)s AND r.tenant IS NOT NULL ORDER BY r.tenant LIMIT 1)
    UNION ALL
    SELECT (
        SELECT r.tenant FROM records r
        WHERE r.pipeline = %(pipeline)s AND r.tenant > t.tenant
        ORDER BY r.tenant LIMIT 1
    )
    FROM tenants t
    WHERE t.tenant IS NOT NULL
)
SELECT t.tenant, w.delay_ms, (extract(epoch FROM c.last_taken_at) * 1000)::bigint AS last_ms
FROM tenants t
LEFT JOIN sync_cursors c ON c.pipeline = %(pipeline)s AND c.tenant = t.tenant
CROSS JOIN LATERAL (
    SELECT min(p.delay_ms) AS delay_ms
    FROM (
        SELECT r.delay_ms
        FROM records r
        WHERE r.pipeline = %(pipeline)s
          AND r.tenant = t.tenant
          AND r.xid >= coalesce(pg_snapshot_xmin(c.snapshot), '0'::xid8)
          AND (c.snapshot IS NULL OR NOT pg_visible_in_snapshot(r.xid, c.snapshot))
        UNION ALL
        SELECT r.delay_ms
        FROM quarantine q
        JOIN records r ON r.pipeline = q.pipeline AND r.message_id = q.external_id AND r.revision = q.revision
        WHERE q.pipeline = %(pipeline)s AND q.tenant = t.tenant AND q.retry_at IS NOT NULL
    ) p
) w
WHERE w.delay_ms IS NOT NULL
  AND (%(all)s OR c.last_taken_at IS NULL OR c.last_taken_at + w.delay_ms * interval '1 millisecond' <= now())
