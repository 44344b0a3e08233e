-- As `adopted_many.sql`, of one row. It is called for each row, so it does no more than it must.
SELECT c.*, {schema}.next_id({source}) AS id, {schema}.next_revision(NULL) AS revision
FROM (
{changes}
) c
ORDER BY c.tenant, c.key
