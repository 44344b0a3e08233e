-- The trigger function of an adopted table, in parts.

-- name: adopt_function
-- The trigger function of an adopted table. It runs with its owner's rights, so that writers of the table need no further ones.
-- So nothing here may call functions made by others, such as the cast of a type. Each column of the table is qualified with an
-- alias, and no query on it uses a variable, so a column may have any name. It contains no percent sign except in names: some
-- drivers treat it as a placeholder and some do not, and if it is doubled for one that does not, it stays doubled. A session keeps
-- the types with which it has planned a query, so if these have changed the queries are planned again.
CREATE OR REPLACE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET row_security = off{styles} AS $taskbridge$
DECLARE
    ours oid;
    named boolean;
    typed boolean;
    watched boolean;
    watched_named boolean;
    -- Only a superuser could set it in the head of the function.
    keep_ids text := current_setting('taskbridge.keep_ids', true);
    ignored text := set_config('taskbridge.keep_ids', 'on', true);
BEGIN
    -- The usual case has a query of its own, since this runs for each row of a partitioned table.
    SELECT a.relation, true, true, true, true INTO ours, named, watched_named, typed, watched
    FROM {schema}.adopted a{unchanged}
    WHERE a.source = {source};
    IF NOT FOUND THEN
        -- A transaction whose snapshot is older than the adoption does not see it, and goes on.
        SELECT a.relation, c.named, c.watched_named, c.typed, c.watched
        INTO ours, named, watched_named, typed, watched
        FROM {schema}.adopted a
        CROSS JOIN LATERAL (
{columns}
        ) c
        WHERE a.source = {source};
    END IF;
    IF ours <> TG_RELID AND ours IS DISTINCT FROM pg_partition_root(TG_RELID) THEN
        -- It may have become a part of another table; where it was dropped, this one was restored.
        IF NOT EXISTS (SELECT FROM pg_partition_ancestors(TG_RELID) p WHERE p.relid = ours)
            AND EXISTS (SELECT FROM pg_class c WHERE c.oid = ours)
        THEN
            -- A partition that was detached keeps its trigger of TRUNCATE, and none of the rows'.
            IF TG_OP = 'TRUNCATE' THEN
                ignored := set_config('taskbridge.keep_ids', keep_ids, true);
                RETURN NULL;
            END IF;
            RAISE EXCEPTION USING ERRCODE = 'insufficient_privilege',
                MESSAGE = concat(TG_RELID::regclass, ' is not the table that was adopted as the source ', {source});
        END IF;
    END IF;
    IF NOT named OR TG_OP = 'UPDATE' AND NOT watched_named THEN
{missed};
    ELSIF TG_OP = 'TRUNCATE' THEN
        -- Nothing says which rows a TRUNCATE takes, so it is asked before. A partition has a name of its own.
        EXECUTE CASE WHEN typed IS FALSE THEN {emptied_untyped} ELSE {emptied} END;
    ELSIF NOT typed THEN
        EXECUTE CASE TG_OP WHEN 'INSERT' THEN {came_untyped} WHEN 'UPDATE' THEN {changed_untyped} ELSE {went_untyped} END
            USING NEW, OLD;
    ELSIF NOT watched AND TG_OP = 'UPDATE' AND TG_LEVEL = 'ROW' THEN
        EXECUTE {changed_anew} USING NEW, OLD;
    ELSIF TG_OP = 'INSERT' THEN
{came};
    ELSIF TG_OP = 'UPDATE' THEN
{changed};
    ELSE
{went};
    END IF;
    ignored := set_config('taskbridge.keep_ids', keep_ids, true);
    RETURN NULL;
END
$taskbridge$

-- name: adopted_came
-- A part of the trigger function of an adopted table: inserted rows. These are never muted: rows that a batch's own transaction
-- adds are new work.
SELECT {new_tenant} AS tenant, {new_key} AS key, false AS gone
FROM {new} n
WHERE {new_counts}

-- name: adopted_changed
-- A part of the trigger function of an adopted table: updated rows. Old and new rows are joined by tenant and key; a row without a
-- counterpart moved to this tenant or key, or away from it. Row images are compared, which works for any type.
SELECT coalesce(n.tenant, o.tenant) AS tenant, coalesce(n.key, o.key) AS key, n.key IS NULL AS gone
FROM (
    SELECT {new_tenant} AS tenant, {new_key} AS key, {new_watched} AS watched
    FROM {new} n
    WHERE {new_counts}
) n
FULL JOIN (
    SELECT {old_tenant} AS tenant, {old_key} AS key, {old_watched} AS watched
    FROM {old} o
    WHERE {old_counts}
) o ON n.tenant = o.tenant AND n.key = o.key
WHERE o.key IS NULL
   OR (n.key IS NULL OR n.watched OPERATOR(pg_catalog.*<>) o.watched)
      AND {muted} IS DISTINCT FROM o.tenant

-- name: adopted_went
-- A part of the trigger function of an adopted table: deleted rows, except those that their tenant's own batch deletes.
SELECT {old_tenant} AS tenant, {old_key} AS key, true AS gone
FROM {old} o
WHERE {old_counts} AND {muted} IS DISTINCT FROM {old_tenant}

-- name: adopted_changes
-- A part of the trigger function of an adopted table: the thin records of changed rows. `changes` returns tenant, key, whether
-- the row is gone, and the numbers of its record. They are written in a fixed order, so that two statements never deadlock here.
-- This statement sets what `stamp_record` sets for other records.
INSERT INTO {schema}.records AS r (source, tenant, key, deleted, id, revision, xid)
SELECT {source}, s.tenant, s.key, s.gone, s.id, s.revision, pg_current_xact_id()
FROM (
{changes}
) s
ON CONFLICT (source, tenant, key) {again}

-- name: adopted_unfit
-- Like `adopted_changes`, with the reason of an unmatched record.
INSERT INTO {schema}.records AS r (source, tenant, key, deleted, reason, discarded_at, id, revision, xid)
SELECT {source}, s.tenant, s.key, s.gone, s.reason, CASE WHEN s.reason IS NOT NULL AND s.gone THEN now() END,
       s.id, s.revision, pg_current_xact_id()
FROM (
{changes}
) s
ON CONFLICT (source, tenant, key) {again}

-- name: adopted_again
-- A part of the trigger function of an adopted table: the row has a record already. If the same transaction wrote it, it cannot
-- have been read yet, so it stays as it is.
DO UPDATE
SET document = NULL, deleted = excluded.deleted, id = excluded.id,
    revision = greatest(excluded.revision, r.revision + 1), xid = excluded.xid, changed_at = now(),
    reason = excluded.reason, discarded_at = excluded.discarded_at
WHERE r.deleted <> excluded.deleted OR r.document IS NOT NULL OR r.xid <> pg_current_xact_id()

-- name: adopted_muted
-- A part of the trigger function of an adopted table: the tenant whose batch this transaction handles, if its changes are muted.
-- It is looked up once per statement, and only if `announce` has set the parameter.
(SELECT CASE WHEN current_setting('taskbridge.muted', true) <> '' THEN {schema}.muted_tenant({source}) END)

-- name: adopted_row
-- A part of a trigger function that is called for each row: one row without columns; the query names NEW or OLD instead. Their
-- columns are not listed (`NEW.*`): a session keeps the list with which it has planned, and would miss a column added later.
(SELECT)

-- name: adopted_styles
-- A part of the head of a trigger function: dates and times have one format, and can be read back.
SET datestyle = 'ISO, YMD' SET timezone = 'UTC'

-- name: adopted_unchanged
-- A part of the trigger function of an adopted table: a column has the name and the type with which it was adopted. Its number
-- changes when a dump is restored.
JOIN pg_attribute t{place}
    ON t{place}.attrelid = a.relation AND t{place}.attname = {name} AND NOT t{place}.attisdropped
    AND t{place}.atttypid = a.column_types[{place}] AND (a.numbered <> a.relation OR t{place}.attnum = a.column_numbers[{place}])

-- name: adopted_single
-- Like `adopted_many`, for one row. It is called for each row, so it does only what is necessary.
SELECT c.*, {schema}.next_id({source}) AS id, {schema}.next_revision(NULL) AS revision
FROM (
{changes}
) c
ORDER BY c.tenant, c.key

-- name: adopted_many
-- A part of the trigger function of an adopted table: the changes of one statement, with the numbers of their records. A statement
-- can change a row twice, as with cascading foreign keys.
SELECT n.*, (SELECT {schema}.next_id({source}, 2147483648)) + n.at AS id, (SELECT {schema}.next_revision(NULL)) + n.at AS revision
FROM (
    SELECT o.*, row_number() OVER () AS at
    FROM (
        SELECT DISTINCT ON (c.tenant, c.key) c.* FROM (
{changes}
        ) c
        ORDER BY c.tenant, c.key, c.gone
    ) o
) n

-- name: adopted_checked
-- A part of the trigger function of an adopted table, if tenant or key may be invalid. The record of such a row is unmatched, with
-- the reason: a trigger must not break the program that writes the row.
SELECT CASE WHEN w.reason IS NULL THEN w.tenant ELSE '' END AS tenant,
       CASE WHEN w.reason IS NULL THEN w.key ELSE {schema}.shown(w.key) || ' ' || md5(quote_literal(w.tenant) || w.key) END
           COLLATE "C" AS key,
       w.gone, w.reason
FROM (
    SELECT c.*, {schema}.unfit(c.tenant, c.key) AS reason
    FROM (
{changes}
    ) c
    OFFSET 0
) w

-- name: adopted_missed
-- A part of the trigger function of an adopted table: a column that it names is gone, or another has its name, so it is unknown
-- which rows have changed. An unmatched record notes that until the table is adopted again (see `adopt_seen`). Each transaction
-- that sees no such record writes one, so that none waits for another.
INSERT INTO {schema}.records (source, tenant, key, reason, id, revision, xid)
SELECT {source}, '', 'columns changed, ' || pg_current_xact_id(),
       'columns of the table are called otherwise since it was adopted, so changes were missed: taskbridge doctor says what to do',
       {schema}.next_id({source}), {schema}.next_revision(NULL), pg_current_xact_id()
WHERE NOT EXISTS (
    SELECT FROM {schema}.records r
    WHERE r.source = {source} AND {says_missed}
)
ON CONFLICT DO NOTHING

-- name: adopted_columns
-- A part of the trigger function of an adopted table: whether tenant and key (`named`) and the watched columns (`watched_named`)
-- have the names that they had when `a` was adopted, and the same types (`typed`, `watched`). After a restore of a dump their
-- numbers are different. It checks all of them, whatever the statement is: with a condition on that, Postgres would plan this
-- again for each call.
SELECT count(t.attname) FILTER (WHERE p.place <= {keys}) = {keys} AS named,
       count(t.attname) = count(*) AS watched_named,
       bool_and(t.atttypid = p.type) FILTER (WHERE p.place <= {keys}) AS typed,
       bool_and(t.atttypid = p.type) FILTER (WHERE p.place > {keys}) AS watched
FROM (SELECT coalesce(pg_partition_root(TG_RELID), TG_RELID)::oid AS whole) one
CROSS JOIN unnest(a.tenant_column || a.key_columns || a.watched_columns, a.column_numbers, a.column_types)
    WITH ORDINALITY p (name, number, type, place)
LEFT JOIN pg_attribute t
    ON t.attrelid = one.whole AND t.attname = p.name::name AND NOT t.attisdropped
    AND (a.numbered <> one.whole OR t.attnum = p.number)
