-- A part of the trigger function of an adopted table: the changes of one statement, with the numbers of their records. It may change
-- a row twice, as cascading foreign keys do.
SELECT n.*, (SELECT {schema}.next_id({source}, 2147483648)) + n.at AS id, (SELECT {schema}.next_revision(NULL)) + n.at AS revision
FROM (
    SELECT o.*, row_number() OVER () AS at
    FROM (
        SELECT DISTINCT ON (c.tenant, c.key) c.* FROM (
{changes}
        ) c
        ORDER BY c.tenant, c.key, c.gone
    ) o
) n
