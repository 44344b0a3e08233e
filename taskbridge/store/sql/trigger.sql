-- The trigger function of an adopted table, in parts.

-- name: adopt_function
-- The trigger function of an adopted table. It is made for its table, because a query that is put together at each call is
-- planned at each call, which costs more than all else.
-- It runs with its owner's rights, so that who writes the table needs no others. So nothing here may call what others have made,
-- such as the cast of a type. Each column of the table is named with an alias, and no query on it uses a variable, so a column
-- may have any name. It has no percent sign but in names: drivers differ in whether they take one for a
-- placeholder, and where somebody doubles it for one that does not, it stays doubled.
CREATE OR REPLACE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET row_security = off
SET datestyle = 'ISO, YMD' SET timezone = 'UTC' AS $taskbridge$
DECLARE
    stands text := {schema}.adopted_stands({source}, TG_RELID, TG_OP);
    tenants text[];
    keys text[];
    came boolean[];
    gone boolean[];
    -- Only a superuser could set it in the head of the function.
    keep_ids text := current_setting('taskbridge.keep_ids', true);
    ignored text := set_config('taskbridge.keep_ids', 'on', true);
BEGIN
    IF stands IS NULL THEN
        NULL;
    ELSIF TG_OP = 'TRUNCATE' THEN
        -- Nothing says which rows a TRUNCATE takes, so it is asked before. A partition has a name of its own.
        EXECUTE {emptied};
    ELSIF TG_LEVEL = 'ROW' AND stands = 'retyped' THEN
        -- A session keeps the types with which it has planned what it reads of a row, so that is planned anew.
        IF TG_OP = 'INSERT' THEN
            EXECUTE {row_moved} INTO tenants, keys, came, gone USING NEW, true;
        ELSIF TG_OP = 'UPDATE' THEN
            EXECUTE {row_changed} INTO tenants, keys, came, gone USING NEW, OLD;
        ELSE
            EXECUTE {row_moved} INTO tenants, keys, came, gone USING OLD, false;
        END IF;
        IF tenants IS NOT NULL THEN
{row_retyped};
        END IF;
    ELSIF TG_LEVEL = 'ROW' AND TG_OP = 'INSERT' THEN
{row_came};
    ELSIF TG_LEVEL = 'ROW' AND TG_OP = 'UPDATE' THEN
{row_updated};
    ELSIF TG_LEVEL = 'ROW' THEN
{row_went};
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

-- name: adopted_records
-- A part of the trigger function of an adopted table, and of a backfill: the thin records of changed rows, which `changes` gives as
-- tenant, key, and whether the row came or is gone. A row that came is recorded for whoever reads its tenant. One that
-- changed or is gone is not, where the tenant's own batch did it. A tenant or key that is not allowed makes the record
-- unmatched: a trigger must not break the program that writes the row. Records are written in one order, so that two
-- statements never wait for each other here. One statement may change a row twice, as cascading foreign keys do. What
-- `stamp_record` sets for others, this statement sets.
INSERT INTO {schema}.records AS r (source, tenant, key, deleted, reason, discarded_at, id, revision, xid)
SELECT {source}, CASE WHEN u.reason IS NULL THEN u.tenant ELSE '' END,
       CASE WHEN u.reason IS NULL THEN u.key ELSE {schema}.shown(u.key) || ' ' || md5(quote_literal(u.tenant) || u.key) END,
       u.gone, u.reason, CASE WHEN u.reason IS NOT NULL AND u.gone THEN now() END,
       (SELECT {schema}.next_id({source}, 2147483648)) + u.at, (SELECT {schema}.next_revision(NULL)) + u.at, pg_current_xact_id()
FROM (
    SELECT c.*, {schema}.unfit(c.tenant, c.key) AS reason, row_number() OVER (ORDER BY c.tenant, c.key) AS at
    FROM (
        SELECT c.tenant, c.key, bool_and(c.gone) AS gone
        FROM (
{changes}
        ) c
        GROUP BY c.tenant, c.key
        HAVING bool_and(c.came) OR {muted} IS DISTINCT FROM c.tenant
    ) c
) u
ON CONFLICT (source, tenant, key) DO UPDATE
SET document = NULL, deleted = excluded.deleted, id = excluded.id,
    revision = greatest(excluded.revision, r.revision + 1), xid = excluded.xid, changed_at = now(),
    reason = excluded.reason, discarded_at = excluded.discarded_at
WHERE {outdated}

-- name: adopted_outdated
-- A part of the trigger function of an adopted table: whether the record that a row has is written again. Where the same
-- transaction wrote it, nobody can have read it.
r.deleted <> excluded.deleted OR r.document IS NOT NULL OR r.xid <> pg_current_xact_id()

-- name: adopted_muted
-- A part of the trigger function of an adopted table: the tenant whose batch this transaction handles, if its changes make no
-- records. It is looked up once in a statement, and only where `announce` has set the parameter.
(SELECT CASE WHEN current_setting('taskbridge.muted', true) <> '' THEN {schema}.muted_tenant({source}) END)

-- name: adopted_moved
-- A part of the trigger function of an adopted table: rows that are new (`came`), or were deleted.
SELECT {tenant} AS tenant, {key} AS key, {came} AS came, NOT {came} AS gone FROM {rows} n WHERE {counts}

-- name: adopted_changed
-- A part of the trigger function of an adopted table: rows that were updated. Old and new ones are brought together by tenant
-- and key; where one is alone, the row came to this tenant or key, or left it. Images are compared, so that any type will do.
SELECT coalesce(n.tenant, o.tenant) AS tenant, coalesce(n.key, o.key) AS key, o.key IS NULL AS came, n.key IS NULL AS gone
FROM (SELECT {new_tenant} AS tenant, {new_key} AS key, {new_watched} AS watched FROM new_rows n WHERE {new_counts}) n
FULL JOIN (SELECT {old_tenant} AS tenant, {old_key} AS key, {old_watched} AS watched FROM old_rows o WHERE {old_counts}) o
    ON n.tenant = o.tenant AND n.key = o.key
WHERE o.key IS NULL OR n.key IS NULL OR n.watched OPERATOR(pg_catalog.*<>) o.watched

-- name: adopted_row_retyped
-- A part of the trigger function of an adopted table: the changes that one row is, as the trigger has put them into arrays.
SELECT w.tenant COLLATE "C" AS tenant, w.key COLLATE "C" AS key, w.came, w.gone
FROM unnest(tenants, keys, came, gone) w (tenant, key, came, gone)
WHERE w.tenant IS NOT NULL

-- name: adopted_row_moved
-- A part of the trigger function of an adopted table: one row that is new, or was deleted.
SELECT ARRAY[{tenant}], ARRAY[{key}], ARRAY[$2], ARRAY[NOT $2] WHERE {counts}

-- name: adopted_row_changed
-- A part of the trigger function of an adopted table: one row that was updated, as if it came and went, which comes to the same.
SELECT ARRAY[CASE WHEN {new_counts} THEN {new_tenant} END, CASE WHEN {old_counts} THEN {old_tenant} END], ARRAY[{new_key}, {old_key}],
       ARRAY[true, false], ARRAY[false, true]
WHERE {new_watched} OPERATOR(pg_catalog.*<>) {old_watched}

-- name: adopted_row_updated
-- As `adopted_row_changed`, where it is planned once.
SELECT c.* FROM (
    SELECT CASE WHEN {new_counts} THEN {new_tenant} END AS tenant, {new_key} AS key, true AS came, false AS gone
    UNION ALL
    SELECT CASE WHEN {old_counts} THEN {old_tenant} END, {old_key}, false, true
) c
WHERE c.tenant IS NOT NULL AND {new_watched} OPERATOR(pg_catalog.*<>) {old_watched}
