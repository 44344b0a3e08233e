-- Tenants that have records to take: the smallest delay among those records (`smallest` where a record has none), and
-- when the tenant's records were last taken, in milliseconds of the Unix epoch. All of them, or only those that are due.
-- The recursion steps from tenant to tenant through the index, so the cost grows with the tenants and not with the rows.
WITH RECURSIVE tenants AS (
    (SELECT r.tenant FROM {schema}.records r WHERE r.source = %(source)s AND r.tenant > '' ORDER BY r.tenant LIMIT 1)
    UNION ALL
    SELECT (
        SELECT r.tenant FROM {schema}.records r
        WHERE r.source = %(source)s AND r.tenant > t.tenant
        ORDER BY r.tenant LIMIT 1
    )
    FROM tenants t
    WHERE t.tenant IS NOT NULL
)
SELECT t.tenant, w.delay_ms, (extract(epoch FROM l.last_taken_at) * 1000)::bigint AS last_ms
FROM tenants t
LEFT JOIN {schema}.sync_cursors l ON l.pipeline = %(pipeline)s AND l.tenant = t.tenant
CROSS JOIN LATERAL (
    SELECT min(coalesce(w.delay_ms, %(smallest)s)) AS delay_ms FROM {pending} w
) w
WHERE t.tenant IS NOT NULL AND w.delay_ms IS NOT NULL
  AND (%(all)s OR l.last_taken_at IS NULL OR l.last_taken_at + w.delay_ms * interval '1 millisecond' <= now())
