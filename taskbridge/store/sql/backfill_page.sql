-- One page of a backfill: thin records of the next rows by the unique index, and the place where it stands, in one
-- transaction. A row that has a record already was seen by a trigger, so it is left alone; but see
-- `backfill_again.sql`. The place is kept as text.
WITH page AS MATERIALIZED (
    SELECT {places} AS place, {tenant} AS tenant, {key} AS key, {counts} AS counts,
           row_number() OVER (ORDER BY {order}) AS at
    FROM (SELECT t.* FROM {table} t WHERE {after} ORDER BY {order} LIMIT %(size)s) t
), written AS (
{records}
)
UPDATE {schema}.adopted a
SET from_now_on = false, backfill_of = {phase},
    backfill_after = coalesce((SELECT p.place FROM page p ORDER BY p.at DESC LIMIT 1), a.backfill_after),
    backfill_columns = {columns},
    backfilled = {so_far} + (SELECT count(*) FROM page),
    backfilled_at = CASE WHEN (SELECT count(*) FROM page) < %(size)s THEN {ends} END
WHERE a.source = {source}
RETURNING a.backfilled, (SELECT count(*) FROM page) < %(size)s AS is_last
