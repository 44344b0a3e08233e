-- The triggers of ours that fire on an adopted table and its partitions, also where rows are replicated.
SELECT quote_ident(n.nspname) || '.' || quote_ident(c.relname) AS name, t.tgname::text AS trigger, t.tgenabled = 'A' AS is_on, t.tgparentid <> 0 AS is_clone
FROM pg_trigger t
JOIN pg_class c ON c.oid = t.tgrelid
JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE t.tgfoid = to_regprocedure(%(function)s)
ORDER BY 1, 2
