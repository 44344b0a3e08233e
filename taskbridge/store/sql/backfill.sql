-- Records of the rows that an adopted table had before.

-- name: backfill_again
-- A part of the writing of a backfill: the row has a record that is older than what triggers may have missed.
DO UPDATE
SET document = NULL, deleted = excluded.deleted, id = excluded.id, revision = greatest(excluded.revision, r.revision + 1),
    xid = excluded.xid, reason = excluded.reason, discarded_at = excluded.discarded_at
WHERE r.xid <= '{again_below}'::xid8

-- name: backfill_begin
-- Where a backfill stands. Null in `backfill_after`: at the beginning.
SELECT a.backfill_of, a.backfill_after, a.backfill_columns, a.backfilled, a.backfilled_at IS NOT NULL AS is_done, a.again_below,
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
-- Before a backfill writes: backfills take turns, and another adoption is waited for, while no record is held yet.
LOCK TABLE {schema}.adopted IN ROW EXCLUSIVE MODE;
SELECT FROM {schema}.adopted WHERE source = %(source)s FOR NO KEY UPDATE

-- name: backfill_once
-- A part of the writing of a backfill: the row has a record, which a trigger wrote.
DO NOTHING

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

-- name: backfill_rows
-- A part of the writing of a backfill: the records of rows that were read, unless the backfill stands elsewhere by now. A row that
-- somebody has changed since has its record. It is left out before anything is locked: where users write a row all the time, its
-- record is seldom free.
SELECT w.tenant COLLATE "C" AS tenant, w.key COLLATE "C" AS key, w.gone
FROM unnest(%(tenants)s::text[], %(keys)s::text[], %(gone)s::boolean[]) w (tenant, key, gone)
WHERE EXISTS (SELECT FROM held) AND NOT EXISTS (
    SELECT FROM {schema}.records r
    WHERE r.source = {source} AND r.tenant = w.tenant COLLATE "C" AND r.key = w.key COLLATE "C" AND {is_recorded}
)

-- name: backfill_state
-- A part of other queries: where the backfill of an adoption `a` stands. Whoever writes a part of it does so only while this is
-- what the rows were read under, so that two backfills, or another adoption meanwhile, never mix.
ROW(a.version, a.again_below, a.backfill_of, a.backfill_after, a.backfill_columns, a.backfilled_at, a.ended_at)::text

-- name: backfill_write
-- The records of some rows, and the place where the backfill stands then. No row: it stood elsewhere, and nothing was written.
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

-- name: backfills_due
-- The adopted tables whose rows from before were not all given a record, and of which nobody has chosen that. `again`:
-- changes may have been missed too.
SELECT a.source, quote_ident(n.nspname) || '.' || quote_ident(c.relname) AS called, cardinality(a.key_columns) AS keys,
       {columns_called} AS columns, a.backfilled, a.again_below > 0 AS again
FROM {schema}.adopted a
JOIN pg_class c ON c.oid = a.relation
JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE a.ended_at IS NULL AND a.backfilled_at IS NULL AND NOT a.from_now_on
ORDER BY a.source
