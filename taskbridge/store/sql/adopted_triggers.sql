-- The triggers of ours that fire on an adopted table and its partitions, also where rows are replicated, and whether the
-- function may write records, which it does with its owner's rights.
SELECT quote_ident(n.nspname) || '.' || quote_ident(c.relname) AS name, t.tgname::text AS trigger, t.tgenabled = 'A' AS is_on,
       t.tgparentid <> 0 AS is_clone,
       has_table_privilege(p.proowner, '{schema}.records', 'INSERT')
           AND has_table_privilege(p.proowner, '{schema}.records', 'UPDATE') AS may_record
FROM pg_trigger t
JOIN pg_proc p ON p.oid = t.tgfoid
JOIN pg_class c ON c.oid = t.tgrelid
JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE t.tgfoid = to_regprocedure(%(function)s)
ORDER BY 1, 2
