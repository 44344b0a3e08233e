-- A part of the trigger function of an adopted table: the thin records of changed rows, which `changes` gives as tenant, key
-- and whether the row is gone. One statement may change a row twice, as cascading foreign keys do. They are written in one
-- order, so that two statements never wait for each other here. What `stamp_record` sets for others, this statement sets.
INSERT INTO {schema}.records AS r (source, tenant, key, deleted, id, revision, xid)
SELECT {source}, s.tenant, s.key, s.gone,
       (SELECT {schema}.next_id()) + s.at, (SELECT {schema}.next_revision(NULL)) + s.at, pg_current_xact_id()
FROM (
    SELECT o.*, row_number() OVER () AS at
    FROM (
        SELECT DISTINCT ON (c.tenant, c.key) c.* FROM (
{changes}
        ) c
        ORDER BY c.tenant, c.key, c.gone
    ) o
) s
ON CONFLICT (source, tenant, key) {again}
