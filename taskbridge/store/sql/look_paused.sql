-- How many tenants of a pipeline are paused, up to `size`, and whether the pipeline itself is.
SELECT count(*) FILTER (WHERE tenant <> '') AS tenants, coalesce(bool_or(tenant = ''), false) AS whole
FROM (SELECT tenant FROM {schema}.pauses WHERE pipeline = %(pipeline)s ORDER BY tenant LIMIT %(size)s) p
