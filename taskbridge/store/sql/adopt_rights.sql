-- Who may run a trigger function may put it on a table of his own, and write records with it. The owner of the adopted table
-- has to: partitions that he makes get the triggers.
DO $rights$ BEGIN
    EXECUTE 'REVOKE EXECUTE ON FUNCTION {function_text}() FROM PUBLIC';
    EXECUTE 'GRANT EXECUTE ON FUNCTION {function_text}() TO '
        || (SELECT c.relowner::regrole::text FROM pg_class c WHERE c.oid = {table_name}::regclass);
END $rights$
