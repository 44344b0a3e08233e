-- A part of the trigger function of an adopted table, where tenant or key may be one that is not allowed. The record of such a row is
-- unmatched, with the reason: a trigger must not break the program that writes the row.
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
