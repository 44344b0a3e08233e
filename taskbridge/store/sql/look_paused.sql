-- How many tenants of a pipeline are paused, up to `size`, the first by name, and whether the pipeline itself is.
SELECT count(*) FILTER (WHERE tenant <> '') AS tenants, min(tenant) FILTER (WHERE tenant <> '') AS first,
       coalesce(bool_or(tenant = ''), false) AS whole
FROM (SELECT tenant FROM {schema}.pauses WHERE pipeline = %(pipeline)s ORDER BY tenant LIMIT %(size)s) p
