-- Per tenant of a list: how many of its records that were committed before a snapshot are pending. Tenants with none are
-- left out.
SELECT t.tenant, w.records
FROM (SELECT unnest(%(tenants)s::text[]) COLLATE "C" AS tenant) t
CROSS JOIN LATERAL (
    SELECT count(*) AS records FROM {pending} w WHERE pg_visible_in_snapshot(w.xid, %(snapshot)s::pg_snapshot)
) w
WHERE w.records > 0
ORDER BY t.tenant
