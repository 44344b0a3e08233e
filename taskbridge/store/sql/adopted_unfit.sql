-- The same where tenant or key may be one that is not allowed. Such a row is kept as unmatched, with the reason: a trigger must
-- not break the program that writes the row.
INSERT INTO {schema}.records AS r (source, tenant, key, deleted, reason, discarded_at)
SELECT DISTINCT ON (u.tenant, u.key) {source}, u.tenant, u.key, u.gone, u.reason,
       CASE WHEN u.reason IS NOT NULL AND u.gone THEN now() END
FROM (
    SELECT CASE WHEN w.reason IS NULL THEN w.tenant ELSE '' END AS tenant,
           CASE WHEN w.reason IS NULL THEN w.key ELSE {schema}.shown(w.key) || ' ' || md5(w.key) END COLLATE "C" AS key,
           w.gone, w.reason
    FROM (
        SELECT c.*, {schema}.unfit(c.tenant, c.key) AS reason
        FROM (
{changes}
        ) c
        OFFSET 0
    ) w
) u
ORDER BY u.tenant, u.key, u.gone
ON CONFLICT (source, tenant, key) {again}
