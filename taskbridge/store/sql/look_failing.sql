-- The next tenants by name whose last run failed.
SELECT tenant FROM {schema}.sync_cursors
WHERE pipeline = %(pipeline)s AND failures > 0 AND tenant > %(after)s
ORDER BY tenant
LIMIT %(limit)s
