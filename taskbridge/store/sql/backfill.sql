-- Records for the rows that an adopted table had before its adoption.

-- name: backfill_again
-- A part of a backfill's write: the row has a record that is older than the changes that triggers may have missed.
DO UPDATE
SET document = NULL, deleted = excluded.deleted, id = excluded.id, revision = greatest(excluded.revision, r.revision + 1),
    xid = excluded.xid, reason = excluded.reason, discarded_at = excluded.discarded_at
WHERE r.xid <= '{again_below}'::xid8

-- name: backfill_begin
-- The position of a backfill. Null in `backfill_after`: the beginning.
SELECT a.backfill_of, a.backfill_after, a.backfill_columns, a.backfilled, a.backfilled_at IS NOT NULL AS is_done, a.again_below,
       {backfill_state} AS state
FROM {schema}.adopted a
WHERE a.source = %(source)s AND a.ended_at IS NULL

-- name: backfill_gone
-- One page of the second phase of a backfill, if triggers may have missed changes: the next records; `counts`: the row is gone.
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
-- Before a backfill writes: backfills take turns, and wait for another adoption, while they have no record locked yet.
LOCK TABLE {schema}.adopted IN ROW EXCLUSIVE MODE;
SELECT FROM {schema}.adopted WHERE source = %(source)s FOR NO KEY UPDATE

-- name: backfill_once
-- A part of a backfill's write: the row has a record, which a trigger wrote.
DO NOTHING

-- name: backfill_page
-- One page of a backfill: tenant and key of the next rows by the unique index, and the position of each as text. A row without a
-- tenant or a key has no record. This only reads, so it blocks nobody, however long it takes.
SELECT {places} AS place, {tenant} AS tenant, {key} AS key, {counts} AS counts, false AS gone
FROM (SELECT t.* FROM {table} t WHERE {after} ORDER BY {order} LIMIT %(size)s) t
ORDER BY {order}

-- name: backfill_restart
-- A backfill starts over and writes another record for each row, since triggers may have missed changes.
UPDATE {schema}.adopted
SET again_below = pg_current_xact_id()::text::bigint, backfill_after = NULL, backfill_columns = NULL, backfilled = 0,
    backfilled_at = NULL, from_now_on = false
WHERE source = %(source)s AND ended_at IS NULL

-- name: backfill_rows
-- A part of a backfill's write: the records of rows that were read, unless the backfill has moved since. A row that was changed
-- since then has its record. It is left out before anything is locked: if users write a row all the time, its record is rarely
-- unlocked.
SELECT w.tenant COLLATE "C" AS tenant, w.key COLLATE "C" AS key, w.gone
FROM unnest(%(tenants)s::text[], %(keys)s::text[], %(gone)s::boolean[]) w (tenant, key, gone)
WHERE EXISTS (SELECT FROM held) AND NOT EXISTS (
    SELECT FROM {schema}.records r
    WHERE r.source = {source} AND r.tenant = w.tenant COLLATE "C" AND r.key = w.key COLLATE "C" AND {is_recorded}
)

-- name: backfill_state
-- A part of other queries: the state of the backfill of an adoption `a`. A part is written only if the state is the same as when
-- its rows were read, so that two backfills, or another adoption in the meantime, never mix.
ROW(a.version, a.again_below, a.backfill_of, a.backfill_after, a.backfill_columns, a.backfilled_at, a.ended_at)::text

-- name: backfill_write
-- The records of some rows, and the new position of the backfill. No row: it had moved, and nothing was written.
WITH held AS MATERIALIZED (
    SELECT FROM {schema}.adopted a WHERE a.source = {source} AND {backfill_state} = %(state)s
), written AS (
{records}
)
UPDATE {schema}.adopted a
SET from_now_on = false,
    backfill_of = %(phase)s,
    backfill_after = %(place)s::text[],
    backfill_columns = {columns},
    backfilled = %(rows)s,
    backfilled_at = CASE WHEN %(is_done)s THEN now() END
WHERE a.source = {source} AND EXISTS (SELECT FROM held)
RETURNING {backfill_state}
