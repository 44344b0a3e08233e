-- A part of the trigger function of an adopted table: the thin records of changed rows, which `changes` gives as tenant, key
-- and whether the row is gone. In one order, so that two statements never wait for each other here. What the same
-- transaction has recorded already nobody can have read, so it stays; else another revision is asked for by changing it.
INSERT INTO {schema}.records AS r (source, tenant, key, deleted)
SELECT {source}, c.tenant, c.key, c.gone
FROM (
{changes}
) c
ORDER BY c.tenant, c.key
ON CONFLICT (source, tenant, key) DO UPDATE SET document = NULL, deleted = excluded.deleted, revision = 0
WHERE r.deleted <> excluded.deleted OR r.document IS NOT NULL OR r.xid <> pg_current_xact_id()
