-- Adopting a user's table, examining it, and giving it up.

-- name: named_table
-- The table with this name, written as in SQL. No row: there is none.
SELECT c.oid::bigint AS relation, c.relname::text AS name FROM pg_class c WHERE c.oid = to_regclass(%(table)s)

-- name: adoptable
-- The properties of a table, and the rights of this role on it. No row: there is no table with this id.
SELECT quote_ident(n.nspname) || '.' || quote_ident(c.relname) AS name, c.relkind::text AS kind, c.relpersistence::text,
       c.relispartition AS is_partition,
       c.relkind <> 'p' AND EXISTS (SELECT FROM pg_inherits i WHERE i.inhparent = c.oid OR i.inhrelid = c.oid) AS inherits,
       n.nspname = {schema_name} AS is_ours,
       row_security_active(c.oid) AS is_guarded,
       pg_has_role(c.relowner, 'USAGE') AS is_owned,
       has_table_privilege(c.oid, 'SELECT') AS is_readable,
       {lacks} || CASE WHEN NOT has_schema_privilege({schema_name}, 'CREATE') THEN ARRAY['CREATE on the schema ' || {schema_name}] END AS lacks,
       EXISTS (SELECT FROM pg_subscription_rel s WHERE s.srrelid = c.oid) AS is_subscribed,
       ARRAY(
           SELECT quote_ident(ln.nspname) || '.' || quote_ident(l.relname)
           FROM pg_partition_tree(c.oid) p JOIN pg_class l ON l.oid = p.relid JOIN pg_namespace ln ON ln.oid = l.relnamespace
           WHERE p.isleaf AND p.relid <> c.oid
           ORDER BY 1
       ) AS partitions,
       EXISTS (
           SELECT FROM pg_partition_tree(c.oid) p JOIN pg_class l ON l.oid = p.relid WHERE l.relkind = 'f'
       ) AS has_foreign,
       to_regprocedure('pg_input_is_valid(text,text)') IS NOT NULL AS may_ask,
       c.reltuples::bigint AS rows
FROM pg_class c
JOIN pg_namespace n ON n.oid = c.relnamespace
CROSS JOIN (SELECT r.oid AS role FROM pg_roles r WHERE r.rolname = current_user) o
WHERE c.oid = %(relation)s

-- name: adoptable_columns
-- The columns of a table: how their type is written, and the type below all domains. `operators`: the schema of its equality
-- operator. `base`: empty for user-defined types. `is_numeric`: numerics, or arrays of them. `modifier`: of the type, or of the
-- domain that sets it; -1: none.
SELECT a.attname AS name, format_type(a.atttypid, a.atttypmod) AS written, format_type(b.oid, -1) AS bare,
       quote_ident(b.space) AS operators, quote_ident(cn.nspname) || '.' || quote_ident(c.collname) AS collation,
       a.attnotnull AS is_not_null, a.attgenerated = 'v' AS is_virtual, b.typtype = 'e' AS is_enum,
       CASE WHEN b.typtype = 'b' AND (b.space = 'pg_catalog' OR b.typname = 'citext') THEN b.typname ELSE '' END AS base,
       b.is_numeric, b.is_array, b.modifier
FROM pg_attribute a
LEFT JOIN pg_collation c ON c.oid = a.attcollation
LEFT JOIN pg_namespace cn ON cn.oid = c.collnamespace
CROSS JOIN LATERAL (
    WITH RECURSIVE below AS (
        SELECT t.*, false AS in_array, greatest(a.atttypmod, t.typtypmod) AS modifier FROM pg_type t WHERE t.oid = a.atttypid
        UNION ALL
        SELECT t.*, o.in_array OR o.typtype <> 'd', greatest(o.modifier, t.typtypmod)
        FROM below o
        JOIN pg_type t ON t.oid = CASE WHEN o.typtype = 'd' THEN o.typbasetype WHEN o.typcategory = 'A' THEN o.typelem END
    )
    SELECT o.oid, o.typtype, o.typname, o.modifier, CASE WHEN o.typtype = 'e' THEN 'pg_catalog' ELSE n.nspname END AS space,
           EXISTS (SELECT FROM below WHERE oid = 'numeric'::regtype) AS is_numeric,
           EXISTS (SELECT FROM below WHERE in_array) AS is_array
    FROM below o JOIN pg_namespace n ON n.oid = o.typnamespace
    WHERE o.typtype <> 'd' AND NOT o.in_array
) b
WHERE a.attrelid = %(relation)s AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY a.attnum

-- name: adoptable_index
-- The columns of a unique index that consists of some of `columns`: rows are found by it, and no two rows are one record.
SELECT k.names
FROM pg_index i
CROSS JOIN LATERAL (
    SELECT array_agg(a.attname::text ORDER BY p.at) AS names
    FROM generate_series(0, i.indnkeyatts - 1) p (at)
    JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[p.at]
) k
WHERE i.indrelid = %(relation)s AND i.indisunique AND i.indisvalid AND i.indimmediate
  AND i.indpred IS NULL AND i.indexprs IS NULL AND k.names <@ %(columns)s::text[]
ORDER BY i.indisprimary DESC, cardinality(k.names), i.indexrelid
LIMIT 1

-- name: adopted
-- One adopted table, or all of them, with the present names of the table and its columns. No `called`: the table was dropped.
-- Dropped columns, and those of a table that was created again, keep the names under which they were adopted.
SELECT a.source, a.relation::oid::bigint AS relation, a.name, a.tenant_column, a.key_columns, a.watched_columns, a.digest,
       {adoption_version} AS version, a.ended_at IS NOT NULL AS ended,
       quote_ident(s.nspname) || '.' || quote_ident(c.relname) AS called,
       ARRAY(
           SELECT coalesce(t.attname::text, p.name)
           FROM unnest(a.tenant_column || a.key_columns || a.watched_columns, a.column_numbers)
               WITH ORDINALITY p (name, number, place)
           LEFT JOIN pg_attribute t
               ON t.attrelid = a.relation AND a.numbered = a.relation::oid AND t.attnum = p.number AND NOT t.attisdropped
           ORDER BY p.place
       ) AS columns_called,
       n.taken AS columns_taken, n.retyped AS columns_retyped, a.column_kinds,
       a.backfilled_at IS NULL AND NOT a.from_now_on AS lacks_backfill, a.backfilled, a.again_below > 0 AS again
FROM {schema}.adopted a
LEFT JOIN pg_class c ON c.oid = a.relation
LEFT JOIN pg_namespace s ON s.oid = c.relnamespace
CROSS JOIN LATERAL (
    SELECT coalesce(array_agg(p.name) FILTER (WHERE t.attname = p.name AND t.attnum <> p.number), '{}') AS taken,
           coalesce(array_agg(p.name) FILTER (WHERE t.attnum = p.number AND t.atttypid <> p.type), '{}') AS retyped
    FROM unnest(a.tenant_column || a.key_columns || a.watched_columns, a.column_numbers, a.column_types)
        p (name, number, type)
    JOIN pg_attribute t
        ON t.attrelid = a.relation AND a.numbered = a.relation::oid AND t.attnum > 0 AND NOT t.attisdropped
        AND (t.attname = p.name OR t.attnum = p.number)
) n
WHERE %(source)s::text IS NULL OR a.source = %(source)s
ORDER BY a.source

-- name: adopted_document
-- A part of other queries: the row of an adopted table for the record `r`, as JSON text. The row is looked up with the key as a
-- value of the column's type, and then its own key is compared as text, because two texts may be one value. No row of the table:
-- it is gone. OFFSET 0 makes it be looked up row by row, so that the order of the records stays. Without documents the table is
-- not read, so that a key that is no longer a valid value does not affect other records.
(
    SELECT CASE WHEN w.size <= %(small)s THEN coalesce(r.document, {json})::text END AS text,
           CASE WHEN w.size > %(small)s THEN w.size END AS stored,
           CASE WHEN one.wanted THEN r.id IS NOT NULL AND r.document IS NULL AND t.tableoid IS NULL
               ELSE coalesce(r.deleted, false) END AS deleted
    FROM (SELECT %(small)s >= 0 AS wanted) one
    LEFT JOIN {table} t ON {match}
    CROSS JOIN LATERAL (
        SELECT CASE WHEN one.wanted THEN coalesce(pg_column_size(r.document), pg_column_size(t.*)) END AS size
    ) w
    OFFSET 0
)

-- name: adopted_has_missed
-- Whether triggers of an adopted table found its columns changed (see `adopted_missed`).
SELECT EXISTS (
    SELECT FROM {schema}.records r
    WHERE r.source = %(source)s AND {says_missed}
)

-- name: says_missed
-- A part of other queries: the record `r` notes that changes of an adopted table were missed (see `adopted_missed`).
r.tenant = '' AND r.key > 'columns changed, ' AND r.key < 'columns changed-' AND r.discarded_at IS NULL

-- name: adopted_none
-- A part of other queries, in place of an adopted table that was dropped.
(SELECT NULL::oid AS tableoid WHERE false)

-- name: adopted_triggers
-- Our triggers on an adopted table and its partitions, including whether they fire when rows are replicated. `lacks`: the rights
-- that the function's owner, whose rights it uses, lacks. A TRUNCATE reads the table. `may_clone`: the table's owner can create
-- partitions, which get the triggers of the table.
SELECT quote_ident(n.nspname) || '.' || quote_ident(c.relname) AS name, t.tgname::text AS trigger, t.tgenabled::text AS fires,
       t.tgparentid <> 0 AS is_clone,
       c.relkind <> 'p' OR has_function_privilege(c.relowner, p.oid, 'EXECUTE') AS may_clone,
       p.proowner::regrole::text AS role, p.prosrc AS body,
       {lacks} || CASE WHEN t.tgtype & 32 <> 0 THEN ARRAY(
           SELECT l.what
           FROM (VALUES
               ('USAGE on the schema ' || quote_ident(n.nspname), has_schema_privilege(o.role, n.oid, 'USAGE')),
               ('SELECT on ' || t.tgrelid::regclass, has_table_privilege(o.role, c.oid, 'SELECT'))
           ) l (what, has_it)
           WHERE NOT l.has_it
       ) END AS lacks
FROM pg_trigger t
JOIN pg_proc p ON p.oid = t.tgfoid
JOIN pg_class c ON c.oid = t.tgrelid
JOIN pg_namespace n ON n.oid = c.relnamespace
CROSS JOIN LATERAL (SELECT p.proowner AS role) o
WHERE t.tgfoid = to_regprocedure(%(function)s)
ORDER BY 1, 2

-- name: adopt_always
-- The trigger also fires if a session, or logical replication, applies the rows of another server.
ALTER TABLE {table} ENABLE ALWAYS TRIGGER {trigger}

-- name: adopt_empty
-- A table without rows needs no backfill. Its triggers exist, so there are no earlier writers any more; a transaction with an
-- older snapshot cannot tell. Writers wait during this check, which in an emptied table reads all dead rows, so only tables of
-- up to 8 MB are checked.
UPDATE {schema}.adopted a
SET backfilled_at = now()
WHERE a.source = {source} AND a.backfilled_at IS NULL AND a.backfill_after IS NULL AND a.again_below = 0
  AND current_setting('transaction_isolation') = 'read committed'
  AND CASE WHEN (
          SELECT sum(pg_relation_size(t.relid)) < 8388608
          FROM (SELECT a.relation AS relid UNION SELECT p.relid FROM pg_partition_tree(a.relation) p) t
      ) THEN NOT EXISTS (SELECT FROM {table}) ELSE false END

-- name: adopt_from_now_on
-- It was chosen that rows from before the adoption get no backfill.
UPDATE {schema}.adopted SET from_now_on = true WHERE source = {source}

-- name: adopt_hold
-- All locks of an adoption in one statement, so that its timeout applies to all of them together: a table may have many
-- partitions, and those locked first keep their writers waiting until the last one is locked. Dropped tables are left out.
DO $hold$
DECLARE
    tables text := (SELECT string_agg(t.name, ', ' ORDER BY t.at) FROM unnest({tables}) WITH ORDINALITY t (name, at)
                    WHERE to_regclass(t.name) IS NOT NULL);
BEGIN
    IF tables IS NOT NULL THEN
        EXECUTE 'LOCK TABLE ' || tables || ' IN {mode} MODE';
    END IF;
END $hold$

-- name: adopt_lock
-- Before a table is adopted or given up: two processes that create the same function at once would fail.
LOCK TABLE {schema}.adopted IN SHARE ROW EXCLUSIVE MODE

-- name: adopt_register
-- The adoption, for workers and for the doctor. Changes were missed if the table was given up, if it replaces another one, or if
-- a trigger did not fire on it or on one of its partitions: a backfill then writes its records again. Missing TRUNCATE triggers
-- are ignored: an attached partition lacks only that one. The same applies if the keys of its records are different now, or if a
-- trigger could not tell what had changed. A transaction of another isolation level sees the triggers as they were before it
-- waited for its locks, so it cannot tell.
INSERT INTO {schema}.adopted AS a (source, relation, name, tenant_column, key_columns, watched_columns, digest, column_kinds)
VALUES ({source}, {table_name}::regclass, {table_name}, {tenant_name}, {key_names}, {watched_names}, {digest}, {kinds})
ON CONFLICT (source) DO UPDATE
SET relation = excluded.relation, name = excluded.name, tenant_column = excluded.tenant_column,
    key_columns = excluded.key_columns, watched_columns = excluded.watched_columns, digest = excluded.digest, column_kinds = excluded.column_kinds,
    version = DEFAULT, adopted_at = now(), ended_at = NULL,
    (backfill_after, backfilled, backfilled_at, from_now_on, again_below) = (
        SELECT CASE WHEN c.all_seen THEN a.backfill_after END,
               CASE WHEN c.all_seen THEN a.backfilled ELSE 0 END,
               CASE WHEN c.all_seen THEN a.backfilled_at END,
               c.all_seen AND a.from_now_on,
               CASE WHEN c.all_seen THEN a.again_below ELSE pg_current_xact_id()::text::bigint END
        FROM (
            SELECT current_setting('transaction_isolation') = 'read committed'
            AND a.ended_at IS NULL AND a.relation = excluded.relation AND NOT EXISTS (
                SELECT FROM unnest({row_triggers}) r (name)
                LEFT JOIN pg_trigger t ON t.tgrelid = excluded.relation AND t.tgname = r.name
                WHERE t.tgenabled IS DISTINCT FROM 'A'
            ) AND NOT EXISTS (
                SELECT FROM pg_partition_tree(excluded.relation) p
                JOIN pg_trigger t ON t.tgrelid = p.relid
                WHERE t.tgparentid <> 0 AND t.tgname = ANY ({row_triggers}) AND t.tgenabled <> 'A'
            ) AND NOT EXISTS (
                SELECT FROM unnest(
                    a.column_numbers[:{keys}], excluded.column_numbers[:{keys}], a.column_kinds, excluded.column_kinds
                ) k (was_column, is_column, was_kind, is_kind)
                WHERE a.numbered = excluded.relation::oid AND k.was_column IS DISTINCT FROM k.is_column
                   OR k.was_kind <> k.is_kind AND (k.is_kind <> 'text' OR split_part(k.was_kind, '(', 1) IN ('date', 'timestamp', 'timestamptz'))
            ) AND NOT EXISTS (
                SELECT FROM {schema}.records r
                WHERE r.source = {source} AND {says_missed}
            ) AS all_seen
        ) c
    )

-- name: adopt_rights
-- A role that may run a trigger function could attach it to a table of its own, and write records with it. So only the owner of
-- the adopted table may run it, and the owners of those partitions that have partitions: new ones get the triggers.
DO $rights$ BEGIN
    EXECUTE 'REVOKE EXECUTE ON FUNCTION {function_text}() FROM PUBLIC';
    EXECUTE 'GRANT EXECUTE ON FUNCTION {function_text}() TO ' || (
        SELECT string_agg(DISTINCT c.relowner::regrole::text, ', ')
        FROM pg_class c
        WHERE c.oid = {table_name}::regclass
           OR c.relkind = 'p' AND c.oid IN (SELECT p.relid FROM pg_partition_tree({table_name}::regclass) p)
    );
END $rights$

-- name: adopt_seen
-- After a table was adopted: the records of `adopted_missed` are no longer needed, because a backfill is due.
UPDATE {schema}.records r SET discarded_at = now() WHERE r.source = {source} AND {says_missed}

-- name: adopt_trigger
-- A trigger of an adopted table.
CREATE OR REPLACE TRIGGER {trigger} {timing} ON {table}
    {each} EXECUTE FUNCTION {function}()

-- name: adoption_version
-- A part of other queries: the version of an adoption `a` and of its table, the row `c` of `pg_class`. The latter changes with the
-- columns, so that a process notices a new numeric column, which must be read as text. It also changes with the table's name, and
-- it includes the name of the schema, since the queries of a process contain both. It includes the adopted columns, because
-- renaming a column or changing its type changes nothing else.
concat_ws(' ', a.version, c.xmin, c.relnamespace::regnamespace, ARRAY(
    SELECT concat_ws(' ', attname, atttypid, atttypmod) FROM pg_attribute WHERE attrelid = c.oid AND attnum = ANY (a.column_numbers) ORDER BY attnum
))

-- name: once_adopted
-- The sources that are or were adopted tables: changes of former ones may be pending, and are still read from the table.
SELECT source FROM {schema}.adopted

-- name: lacks
-- A part of other queries: which rights that the trigger function of an adopted table needs the role `o.role` lacks.
ARRAY(
    SELECT replace(l.what, '"', '')
    FROM (VALUES
        ('USAGE on the schema {schema}', has_schema_privilege(o.role, '{schema}'::regnamespace, 'USAGE')),
        ('SELECT on {schema}.adopted', has_table_privilege(o.role, '{schema}.adopted', 'SELECT')),
        ('SELECT on {schema}.records', has_table_privilege(o.role, '{schema}.records', 'SELECT')),
        ('INSERT on {schema}.records', has_table_privilege(o.role, '{schema}.records', 'INSERT')),
        ('UPDATE on {schema}.records', has_table_privilege(o.role, '{schema}.records', 'UPDATE')),
        ('EXECUTE on {schema}.last_id(text)', has_function_privilege(o.role, '{schema}.last_id(text)', 'EXECUTE')),
        ('EXECUTE on {schema}.muted_tenant(text)', has_function_privilege(o.role, '{schema}.muted_tenant(text)', 'EXECUTE')),
        ('EXECUTE on {schema}.next_id(text, bigint)', has_function_privilege(o.role, '{schema}.next_id(text,bigint)', 'EXECUTE')),
        ('EXECUTE on {schema}.next_revision(bigint)', has_function_privilege(o.role, '{schema}.next_revision(bigint)', 'EXECUTE')),
        ('EXECUTE on {schema}.owns_records()', has_function_privilege(o.role, '{schema}.owns_records()', 'EXECUTE')),
        ('EXECUTE on {schema}.shown(text)', has_function_privilege(o.role, '{schema}.shown(text)', 'EXECUTE')),
        ('EXECUTE on {schema}.unfit(text, text)', has_function_privilege(o.role, '{schema}.unfit(text,text)', 'EXECUTE'))
    ) l (what, has_it)
    WHERE NOT l.has_it
)

-- name: readable_records
-- Whether this role may read the records.
SELECT has_table_privilege('{schema}.records', 'SELECT')

-- name: unadopt_function
-- A table is given up: drop the function of its triggers.
DROP FUNCTION IF EXISTS {function}()

-- name: unadopt_register
-- A table is given up. Its row stays, because records of its source do.
UPDATE {schema}.adopted SET ended_at = now() WHERE source = {source}

-- name: unadopt_trigger
-- A table is given up: drop a trigger.
DROP TRIGGER IF EXISTS {trigger} ON {table}

-- name: limits
-- How long a statement of this transaction waits for a lock, and how long it may take.
SELECT current_setting('lock_timeout') AS lock_timeout, current_setting('statement_timeout') AS statement_timeout
