-- Write or update records of one source. Those that are there with the very same document stay untouched and give no row.
INSERT INTO {schema}.records AS r (source, tenant, key, document)
SELECT %(source)s, n.tenant, n.key, n.document::jsonb
FROM unnest(%(tenants)s::text[], %(keys)s::text[], %(documents)s::text[]) n (tenant, key, document)
ORDER BY n.tenant, n.key -- so that two of these never wait for each other
ON CONFLICT (source, tenant, key) DO UPDATE
SET document = excluded.document, deleted = false
WHERE r.deleted OR r.document IS DISTINCT FROM excluded.document
RETURNING tenant
