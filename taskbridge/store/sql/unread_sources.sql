-- Of some sources, those that have records of tenants, or are adopted tables.
SELECT s.source
FROM unnest(%(sources)s::text[]) AS s (source)
WHERE EXISTS (SELECT FROM {schema}.records r WHERE r.source = s.source AND r.tenant <> '')
   OR EXISTS (SELECT FROM {schema}.adopted a WHERE a.source = s.source AND a.ended_at IS NULL)
ORDER BY s.source
