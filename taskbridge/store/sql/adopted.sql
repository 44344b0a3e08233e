-- One adopted table, or all of them, with what the table and its columns are called now. No `called`: the table was dropped.
SELECT a.source, a.relation::oid::bigint AS relation, a.name, a.tenant_column, a.key_columns, a.watched_columns, a.digest,
       {adoption_version} AS version, a.ended_at IS NOT NULL AS ended,
       quote_ident(n.nspname) || '.' || quote_ident(c.relname) AS called,
       {columns_called} AS columns_called
FROM {schema}.adopted a
LEFT JOIN pg_class c ON c.oid = a.relation
LEFT JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE %(source)s::text IS NULL OR a.source = %(source)s
ORDER BY a.source
