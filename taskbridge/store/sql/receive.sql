-- Store what webhooks brought, in one statement and so in one transaction: of each delivery its first coming, and of each
-- record its newest version. A record that is there with the very same document stays untouched. One without a document is
-- deleted.
-- A delivery that another transaction is storing is waited for: it is known only then whether it came before.
-- Each INSERT goes in the order of its key, so that two of these never wait for each other.
WITH given AS MATERIALIZED (
    SELECT *
    FROM unnest(
        %(sources)s::text[], %(deliveries)b::text[], %(tenants)b::text[], %(keys)b::text[], %(versions)s::numeric[],
        %(documents)b::text[], %(traceparents)b::text[]
    ) WITH ORDINALITY AS g (source, delivery, tenant, key, version, document, traceparent, place)
), fresh AS (
    INSERT INTO {schema}.received AS r (source, delivery)
    SELECT source, delivery FROM given WHERE delivery IS NOT NULL ORDER BY source, delivery
    ON CONFLICT DO NOTHING
    RETURNING r.source, r.delivery
), newest AS MATERIALIZED (
    SELECT DISTINCT ON (g.source, g.tenant, g.key) g.*
    FROM given g
    WHERE g.delivery IS NULL OR g.place IN (
        SELECT min(o.place) FROM given o JOIN fresh f ON f.source = o.source AND f.delivery = o.delivery
        GROUP BY o.source, o.delivery
    )
    ORDER BY g.source, g.tenant, g.key, g.version DESC NULLS LAST, g.place DESC
), versioned AS (
    INSERT INTO {schema}.record_versions AS v (source, tenant, key, version)
    SELECT source, tenant, key, version FROM newest WHERE version IS NOT NULL ORDER BY source, tenant, key
    ON CONFLICT (source, tenant, key) DO UPDATE SET version = excluded.version
    WHERE v.version <= excluded.version
    RETURNING v.source, v.tenant, v.key
), written AS (
    INSERT INTO {schema}.records AS r (source, tenant, key, document, deleted, traceparent)
    SELECT n.source, n.tenant, n.key, n.document::jsonb, n.document IS NULL, n.traceparent
    FROM newest n
    LEFT JOIN versioned v ON v.source = n.source AND v.tenant = n.tenant AND v.key = n.key
    WHERE n.version IS NULL OR v.key IS NOT NULL
    ORDER BY n.source, n.tenant, n.key
    ON CONFLICT (source, tenant, key) DO UPDATE
    SET document = excluded.document, deleted = excluded.deleted, traceparent = excluded.traceparent
    WHERE r.deleted <> excluded.deleted OR r.document IS DISTINCT FROM excluded.document
    RETURNING r.source, r.tenant
)
SELECT 'delivery' AS what, source, delivery AS name FROM fresh
UNION ALL
SELECT DISTINCT 'tenant', source, tenant FROM written
