-- Tenants of a pipeline whose names begin with a text, by name, that have a cursor or records, up to `limit`. `until` is
-- the first name that does not begin so.
WITH RECURSIVE recorded AS (
    (
        SELECT r.tenant, 1 AS number FROM {schema}.records r
        WHERE r.source = %(source)s AND r.tenant >= %(text)s AND r.tenant < %(until)s
        ORDER BY r.tenant LIMIT 1
    )
    UNION ALL
    SELECT (
        SELECT r.tenant FROM {schema}.records r
        WHERE r.source = %(source)s AND r.tenant > t.tenant AND r.tenant < %(until)s
        ORDER BY r.tenant LIMIT 1
    ), t.number + 1
    FROM recorded t
    WHERE t.tenant IS NOT NULL AND t.number < %(limit)s
)
SELECT tenant FROM recorded WHERE tenant IS NOT NULL
UNION
(
    SELECT tenant FROM {schema}.sync_cursors
    WHERE pipeline = %(pipeline)s AND tenant >= %(text)s AND tenant < %(until)s
    ORDER BY tenant LIMIT %(limit)s
)
ORDER BY tenant
LIMIT %(limit)s
