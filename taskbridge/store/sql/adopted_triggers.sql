-- The triggers of ours that fire on an adopted table and its partitions, also where rows are replicated. The function works with
-- its owner's rights: which of them are lacking. A TRUNCATE reads the table. `may_clone`: its owner can make partitions, which
-- get the triggers of the table.
SELECT quote_ident(n.nspname) || '.' || quote_ident(c.relname) AS name, t.tgname::text AS trigger, t.tgenabled::text AS fires,
       t.tgparentid <> 0 AS is_clone,
       c.relkind <> 'p' OR has_function_privilege(c.relowner, p.oid, 'EXECUTE') AS may_clone,
       p.proowner::regrole::text AS role, p.prosrc AS body,
       {lacks} || CASE WHEN t.tgtype & 32 <> 0 THEN ARRAY(
           SELECT l.what
           FROM (VALUES
               ('USAGE on the schema ' || quote_ident(n.nspname), has_schema_privilege(o.role, n.oid, 'USAGE')),
               ('SELECT on ' || t.tgrelid::regclass, has_table_privilege(o.role, c.oid, 'SELECT'))
           ) l (what, has_it)
           WHERE NOT l.has_it
       ) END AS lacks
FROM pg_trigger t
JOIN pg_proc p ON p.oid = t.tgfoid
JOIN pg_class c ON c.oid = t.tgrelid
JOIN pg_namespace n ON n.oid = c.relnamespace
CROSS JOIN LATERAL (SELECT p.proowner AS role) o
WHERE t.tgfoid = to_regprocedure(%(function)s)
ORDER BY 1, 2
