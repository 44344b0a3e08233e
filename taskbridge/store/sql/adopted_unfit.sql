-- As `adopted_changes.sql`, where tenant or key may be one that is not allowed. The record of such a row is unmatched, with the
-- reason: a trigger must not break the program that writes the row.
INSERT INTO {schema}.records AS r (source, tenant, key, deleted, reason, discarded_at, id, revision, xid)
SELECT {source}, s.tenant, s.key, s.gone, s.reason, CASE WHEN s.reason IS NOT NULL AND s.gone THEN now() END,
       (SELECT {schema}.next_id()) + s.at, (SELECT {schema}.next_revision(NULL)) + s.at, pg_current_xact_id()
FROM (
    SELECT o.*, row_number() OVER () AS at
    FROM (
        SELECT DISTINCT ON (u.tenant, u.key) u.*
        FROM (
            SELECT CASE WHEN w.reason IS NULL THEN w.tenant ELSE '' END AS tenant,
                   CASE WHEN w.reason IS NULL THEN w.key ELSE {schema}.shown(w.key) || ' ' || md5(quote_literal(w.tenant) || w.key) END
                       COLLATE "C" AS key,
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
    ) o
) s
ON CONFLICT (source, tenant, key) {again}
