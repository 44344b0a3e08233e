-- The trigger function of an adopted table. It runs with its owner's rights, so that who writes the table needs no others.
-- So nothing here may call what others have made, such as the cast of a type. Each column of the table is named with an alias,
-- and no query on it uses a variable, so a column may have any name. It has no percent sign but in names: drivers differ in whether they
-- take one for a placeholder, and where somebody doubles it for one that does not, it stays doubled.
-- A session keeps the types with which it has planned a query, so where these have changed the queries are planned anew.
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
