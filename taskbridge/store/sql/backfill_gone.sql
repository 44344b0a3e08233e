-- One page of the end of a backfill where triggers may have missed changes: of the next records, those whose row is gone
-- become deleted ones, and the place is kept, in one transaction. A record that a trigger wrote meanwhile has a higher
-- revision and stays.
WITH page AS MATERIALIZED (
    SELECT r.*, r.key AS external_id
    FROM {schema}.records r
    WHERE r.source = {source} AND r.tenant <> '' AND (r.tenant, r.key) > (%(place0)s::text, %(place1)s::text)
    ORDER BY r.tenant, r.key
    LIMIT %(size)s
), gone AS MATERIALIZED (
    SELECT r.tenant, r.key
    FROM page r
    CROSS JOIN LATERAL {row} d
    WHERE r.document IS NULL AND NOT r.deleted AND r.revision < {again_below} AND d.deleted
), written AS (
    UPDATE {schema}.records r SET deleted = true FROM gone g
    WHERE r.source = {source} AND r.tenant = g.tenant AND r.key = g.key AND NOT r.deleted AND r.revision < {again_below}
)
UPDATE {schema}.adopted a
SET backfill_after = coalesce(
        (SELECT ARRAY[p.tenant, p.key] FROM page p ORDER BY p.tenant DESC, p.key DESC LIMIT 1), a.backfill_after
    ),
    backfilled_at = CASE WHEN (SELECT count(*) FROM page) < %(size)s THEN now() END
WHERE a.source = {source}
RETURNING a.backfilled, (SELECT count(*) FROM page) < %(size)s AS is_last
