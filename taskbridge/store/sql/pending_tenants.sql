-- Tenants that have something to sweep, after their cursor or out of quarantine. The recursion steps from tenant to tenant through the index, so the cost grows
-- with the tenants and not with the rows.
WITH RECURSIVE tenants AS (
    (SELECT i.tenant FROM invoices i ORDER BY i.tenant LIMIT 1)
    UNION ALL
    SELECT (SELECT i.tenant FROM invoices i WHERE i.tenant > t.tenant ORDER BY i.tenant LIMIT 1)
    FROM tenants t
    WHERE t.tenant IS NOT NULL
)
SELECT t.tenant
FROM tenants t
LEFT JOIN sync_cursors c ON c.pipeline = %(pipeline)s AND c.tenant = t.tenant
WHERE t.tenant IS NOT NULL
  AND (
      EXISTS (
          SELECT FROM invoices i
          WHERE i.tenant = t.tenant
            AND i.xid >= coalesce(pg_snapshot_xmin(c.snapshot), '0'::xid8)
            AND (c.snapshot IS NULL OR NOT pg_visible_in_snapshot(i.xid, c.snapshot))
      )
      OR EXISTS (
          SELECT FROM quarantine q
          JOIN invoices i ON i.tenant = q.tenant AND i.number = q.external_id AND i.revision = q.revision
          WHERE q.pipeline = %(pipeline)s AND q.tenant = t.tenant AND q.retry_at IS NOT NULL
      )
  )
