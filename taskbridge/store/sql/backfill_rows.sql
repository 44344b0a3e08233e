-- A part of the writing of a backfill: the records of rows that were read, unless the backfill stands elsewhere by now.
SELECT w.tenant COLLATE "C" AS tenant, w.key COLLATE "C" AS key, w.gone
FROM unnest(%(tenants)s::text[], %(keys)s::text[], %(gone)s::boolean[]) w (tenant, key, gone)
WHERE EXISTS (SELECT FROM held)
