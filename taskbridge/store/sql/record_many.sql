-- Write or update records of one source. Those that are there with the very same document stay untouched and give no row.
-- The arrays are sent as binary: as text each quotation mark in a document would be escaped, one by one.
INSERT INTO {schema}.records AS r (source, tenant, key, document, traceparent)
SELECT %(source)s, n.tenant, n.key, n.document::jsonb, %(traceparent)s::text
FROM unnest(%(tenants)b::text[], %(keys)b::text[], %(documents)b::text[]) n (tenant, key, document)
ORDER BY n.tenant, n.key -- so that two of these never wait for each other
ON CONFLICT (source, tenant, key) DO UPDATE
SET document = excluded.document, deleted = false, traceparent = excluded.traceparent
WHERE r.deleted OR r.document IS DISTINCT FROM excluded.document
RETURNING tenant
