-- Tenants of a pipeline whose last run failed, up to a limit, and one of them.
SELECT count(*) AS failing, min(tenant) AS first
FROM (SELECT tenant FROM {schema}.sync_cursors WHERE pipeline = %(pipeline)s AND failures > 0 LIMIT %(size)s) f
