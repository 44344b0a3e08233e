-- A part of the trigger function of an adopted table: the thin records of changed rows, which `changes` gives as tenant, key
-- and whether the row is gone. In one order, so that two statements never wait for each other here.
INSERT INTO {schema}.records AS r (source, tenant, key, deleted)
SELECT {source}, c.tenant, c.key, c.gone
FROM (
{changes}
) c
ORDER BY c.tenant, c.key
ON CONFLICT (source, tenant, key) {again}
