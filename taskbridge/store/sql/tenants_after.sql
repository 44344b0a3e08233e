-- The next tenants by name that have records or a cursor. The recursion goes through the index from one to the next.
WITH RECURSIVE recorded AS (
    (
        SELECT r.tenant, 1 AS number FROM {schema}.records r
        WHERE r.source = %(source)s AND r.tenant > %(after)s
        ORDER BY r.tenant LIMIT 1
    )
    UNION ALL
    SELECT (
        SELECT r.tenant FROM {schema}.records r
        WHERE r.source = %(source)s AND r.tenant > t.tenant
        ORDER BY r.tenant LIMIT 1
    ), t.number + 1
    FROM recorded t
    WHERE t.tenant IS NOT NULL AND t.number < %(limit)s
)
SELECT tenant FROM recorded WHERE tenant IS NOT NULL
UNION
(
    SELECT tenant FROM {schema}.sync_cursors
    WHERE pipeline = %(pipeline)s AND tenant > %(after)s
    ORDER BY tenant LIMIT %(limit)s
)
ORDER BY tenant
LIMIT %(limit)s
