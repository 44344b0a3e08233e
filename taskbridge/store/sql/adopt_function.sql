-- The trigger function of an adopted table. It runs with its owner's rights, so that who writes the table needs no others.
-- So nothing here may call what others have made, such as the cast of a type. Each column of the table is named with an alias,
-- and no query on it uses a variable, so a column may have any name. It has no percent sign but in names: drivers differ in whether they
-- take one for a placeholder, and where somebody doubles it for one that does not, it stays doubled.
CREATE OR REPLACE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET row_security = off{styles} AS $taskbridge$
DECLARE
    -- A transaction whose snapshot is older than the adoption does not see it, and goes on.
    ours oid := (SELECT a.relation FROM {schema}.adopted a WHERE a.source = {source});
    -- Only a superuser could set it in the head of the function.
    keep_ids text := current_setting('taskbridge.keep_ids', true);
    ignored text := set_config('taskbridge.keep_ids', 'on', true);
BEGIN
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
    IF TG_OP = 'INSERT' THEN
{came};
    ELSIF TG_OP = 'UPDATE' THEN
{changed};
    ELSIF TG_OP = 'DELETE' THEN
{went};
    ELSE
        -- Nothing says which rows a TRUNCATE takes, so it is asked before. A partition has a name of its own.
        EXECUTE $truncate$
{emptied_before}$truncate$ || TG_RELID::regclass::text || $truncate${emptied_after}$truncate$;
    END IF;
    ignored := set_config('taskbridge.keep_ids', keep_ids, true);
    RETURN NULL;
END
$taskbridge$
