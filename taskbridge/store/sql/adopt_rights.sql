-- A role that may run a trigger function could put it on a table of its own, and write records with it. So only the owner of
-- the adopted table may, and those of its partitions that have partitions: what they make gets the triggers.
DO $rights$ BEGIN
    EXECUTE 'REVOKE EXECUTE ON FUNCTION {function_text}() FROM PUBLIC';
    EXECUTE 'GRANT EXECUTE ON FUNCTION {function_text}() TO ' || (
        SELECT string_agg(DISTINCT c.relowner::regrole::text, ', ')
        FROM pg_class c
        WHERE c.oid = {table_name}::regclass
           OR c.relkind = 'p' AND c.oid IN (SELECT p.relid FROM pg_partition_tree({table_name}::regclass) p)
    );
END $rights$
