-- A role that may run a trigger function could put it on a table of its own, and write records with it. So only the owner of
-- the adopted table may: the partitions that it makes get the triggers.
DO $rights$ BEGIN
    EXECUTE 'REVOKE EXECUTE ON FUNCTION {function_text}() FROM PUBLIC';
    EXECUTE 'GRANT EXECUTE ON FUNCTION {function_text}() TO '
        || (SELECT c.relowner::regrole::text FROM pg_class c WHERE c.oid = {table_name}::regclass);
END $rights$
