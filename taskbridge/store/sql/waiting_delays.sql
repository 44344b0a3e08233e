-- Per tenant of a list: the smallest delay of the records that wait. Tenants without any are left out.
SELECT t.tenant, w.delay_ms
FROM (SELECT unnest(%(tenants)s::text[]) COLLATE "C" AS tenant) t
CROSS JOIN LATERAL (SELECT min(coalesce(p.delay_ms, %(smallest)s)) AS delay_ms FROM {pending} p) w
WHERE w.delay_ms IS NOT NULL
