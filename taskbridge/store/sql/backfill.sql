-- Records of the rows that an adopted table had before.

-- name: backfill_begin
-- Where a backfill stands. Null in `backfill_after`: at the beginning.
SELECT a.backfill_after, a.backfill_columns, a.backfilled, a.backfilled_at IS NOT NULL AS is_done, a.again_below,
       {backfill_state} AS state
FROM {schema}.adopted a
WHERE a.source = %(source)s AND a.ended_at IS NULL

-- name: backfill_gone
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

-- name: backfill_hold
-- Before a backfill writes: backfills take turns, and another adoption is waited for, while no record is held yet. No row: the
-- backfill stands elsewhere by now.
LOCK TABLE {schema}.adopted IN ROW EXCLUSIVE MODE;
SELECT true FROM {schema}.adopted a WHERE a.source = %(source)s AND {backfill_state} = %(state)s FOR NO KEY UPDATE

-- name: backfill_page
-- One page of a backfill: tenant and key of the next rows by the unique index, and the place of each as text. A row without a
-- tenant or a key has no record. It only reads, so nobody waits for it however long it takes.
SELECT {places} AS place, {tenant} AS tenant, {key} AS key, {counts} AS counts, false AS gone
FROM (SELECT t.* FROM {table} t WHERE {after} ORDER BY {order} LIMIT %(size)s) t
ORDER BY {order}

-- name: backfill_restart
-- A backfill begins anew and writes a record again for each row, since triggers may have missed changes of it.
UPDATE {schema}.adopted
SET again_below = pg_current_xact_id()::text::bigint, backfill_after = NULL, backfill_columns = NULL, backfilled = 0,
    backfilled_at = NULL, from_now_on = false
WHERE source = %(source)s AND ended_at IS NULL

-- name: backfill_keep
-- The place up to which a backfill has come.
UPDATE {schema}.adopted a
SET from_now_on = false, backfill_after = %(place)s::text[], backfill_columns = %(columns)s::text[], backfilled = %(rows)s,
    backfilled_at = CASE WHEN %(is_done)s THEN now() END
WHERE a.source = %(source)s AND {backfill_state} = %(state)s

-- name: backfill_rows
-- A part of the writing of a backfill: rows that were read, unless the backfill stands elsewhere. A row that somebody has changed
-- since has its record. It is left out before anything is locked: where users write a row all the time, its record is seldom free.
SELECT w.tenant COLLATE "C" AS tenant, w.key COLLATE "C" AS key, NOT w.gone AS came, w.gone
FROM {schema}.adopted a
CROSS JOIN unnest(%(tenants)s::text[], %(keys)s::text[], %(gones)s::boolean[]) w (tenant, key, gone)
WHERE a.source = %(source)s AND {backfill_state} = %(state)s AND NOT EXISTS (
    SELECT FROM {schema}.records r
    WHERE r.source = a.source AND r.tenant = w.tenant COLLATE "C" AND r.key = w.key COLLATE "C" AND r.xid > %(below)s::xid8
)

-- name: backfill_state
-- A part of other queries: what the rows of a backfill of the adoption `a` are read under. Whoever writes them does so only while
-- this holds, so that another adoption, or a backfill that was begun again, never mixes with it.
ROW(a.version, a.again_below, a.backfilled_at, a.ended_at)::text
