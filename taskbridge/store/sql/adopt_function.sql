-- The trigger function of an adopted table. It has its owner's rights, so that whoever writes the table needs no other.
CREATE OR REPLACE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET row_security = off SET taskbridge.keep_ids = on AS $taskbridge$
DECLARE
    -- A batch's transaction sets it: what a handler writes back must not wake the handler.
    muted text := current_setting('taskbridge.muted', true);
BEGIN
    IF TG_OP = 'INSERT' THEN
{came};
    ELSIF TG_OP = 'UPDATE' THEN
{changed};
    ELSIF TG_OP = 'DELETE' THEN
{went};
    ELSE
        -- Nothing says which rows a TRUNCATE takes, so it is asked before. A partition has a name of its own.
        EXECUTE $truncate$
{emptied_before}$truncate$ || TG_RELID::regclass::text || $truncate${emptied_after}$truncate$
        USING muted;
    END IF;
    RETURN NULL;
END
$taskbridge$
