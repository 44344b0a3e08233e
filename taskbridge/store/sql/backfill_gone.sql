-- One page of the end of a backfill where triggers may have missed changes: the next records; `counts`: the row is gone.
SELECT ARRAY[r.tenant, r.key] AS place, r.tenant, r.key, true AS gone,
       r.document IS NULL AND NOT r.deleted AND r.xid <= '{again_below}'::xid8 AND d.deleted AS counts
FROM (
    SELECT i.*, i.key AS external_id
    FROM {schema}.records i
    WHERE i.source = {source} AND i.tenant <> '' AND (i.tenant, i.key) > (%(place0)s::text, %(place1)s::text)
    ORDER BY i.tenant, i.key
    LIMIT %(size)s
) r
CROSS JOIN LATERAL {row} d
ORDER BY r.tenant, r.key
