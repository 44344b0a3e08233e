-- A part of the trigger function of an adopted table: the thin records of changed rows, which `changes` gives as tenant, key, whether
-- the row is gone, and the numbers of its record. They are written in one order, so that two statements never wait for each other
-- here. What `stamp_record` sets for others, this statement sets.
INSERT INTO {schema}.records AS r (source, tenant, key, deleted, id, revision, xid)
SELECT {source}, s.tenant, s.key, s.gone, s.id, s.revision, pg_current_xact_id()
FROM (
{changes}
) s
ON CONFLICT (source, tenant, key) {again}
