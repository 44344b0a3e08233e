-- What holds a tenant: its own pause, else its pipeline's.
SELECT nullif(tenant, '') AS tenant, reason, paused_at, paused_by FROM {schema}.pauses
WHERE pipeline = %(pipeline)s AND tenant IN (%(tenant)s, '')
ORDER BY tenant DESC
LIMIT 1
