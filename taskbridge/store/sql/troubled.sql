-- Tenants whose last run failed, those with the most failures first, and those with the most records in quarantine: up to
-- `limit` of each. At most `size` cursors and rows of quarantine are looked at.
(
    SELECT tenant
    FROM (
        SELECT tenant, failures FROM {schema}.sync_cursors WHERE pipeline = %(pipeline)s AND failures > 0 LIMIT %(size)s
    ) c
    ORDER BY failures DESC, tenant
    LIMIT %(limit)s
)
UNION
(
    SELECT tenant
    FROM (
        SELECT tenant FROM {schema}.quarantine
        WHERE pipeline = %(pipeline)s AND discarded_at IS NULL AND retry_at IS NULL
        LIMIT %(size)s
    ) q
    GROUP BY tenant
    ORDER BY count(*) DESC, tenant
    LIMIT %(limit)s
)
