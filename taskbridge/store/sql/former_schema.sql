-- The first other schema of the search path that has a version table of ours. No row: none has.
SELECT n.nspname
FROM pg_class c
JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relname = %(table)s AND c.relkind = 'r' AND n.nspname <> %(schema)s AND n.nspname = ANY (current_schemas(false))
ORDER BY array_position(current_schemas(false), n.nspname)
LIMIT 1
