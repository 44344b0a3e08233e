-- What a table is, and what this role may do with it. No row: there is no table of this id.
SELECT quote_ident(n.nspname) || '.' || quote_ident(c.relname) AS name, c.relkind::text AS kind, c.relpersistence::text,
       c.relispartition AS is_partition,
       c.relkind <> 'p' AND EXISTS (SELECT FROM pg_inherits i WHERE i.inhparent = c.oid OR i.inhrelid = c.oid) AS inherits,
       n.nspname = {schema_name} AS is_ours,
       row_security_active(c.oid) AS is_guarded,
       pg_has_role(c.relowner, 'USAGE') AS is_owned,
       has_table_privilege(c.oid, 'SELECT') AS is_readable,
       {lacks} || CASE WHEN NOT has_schema_privilege({schema_name}, 'CREATE') THEN ARRAY['CREATE on the schema ' || {schema_name}] END AS lacks,
       EXISTS (SELECT FROM pg_subscription_rel s WHERE s.srrelid = c.oid) AS is_subscribed,
       ARRAY(
           SELECT quote_ident(ln.nspname) || '.' || quote_ident(l.relname)
           FROM pg_partition_tree(c.oid) p JOIN pg_class l ON l.oid = p.relid JOIN pg_namespace ln ON ln.oid = l.relnamespace
           WHERE p.isleaf AND p.relid <> c.oid
           ORDER BY 1
       ) AS partitions,
       EXISTS (
           SELECT FROM pg_partition_tree(c.oid) p JOIN pg_class l ON l.oid = p.relid WHERE l.relkind = 'f'
       ) AS has_foreign,
       to_regprocedure('pg_input_is_valid(text,text)') IS NOT NULL AS may_ask,
       c.reltuples::bigint AS rows
FROM pg_class c
JOIN pg_namespace n ON n.oid = c.relnamespace
CROSS JOIN (SELECT r.oid AS role FROM pg_roles r WHERE r.rolname = current_user) o
WHERE c.oid = %(relation)s
