-- One adopted table, or all of them, with what the table and its columns are called now. No `called`: the table was dropped.
SELECT a.source, a.relation::oid::bigint AS relation, a.name, a.tenant_column, a.key_columns, a.watched_columns, a.digest,
       {adoption_version} AS version, a.ended_at IS NOT NULL AS ended,
       quote_ident(s.nspname) || '.' || quote_ident(c.relname) AS called,
       {columns_called} AS columns_called,
       n.taken AS columns_taken, n.retyped AS columns_retyped, a.column_kinds
FROM {schema}.adopted a
LEFT JOIN pg_class c ON c.oid = a.relation
LEFT JOIN pg_namespace s ON s.oid = c.relnamespace
CROSS JOIN LATERAL (
    SELECT coalesce(array_agg(p.name) FILTER (WHERE t.attname = p.name AND t.attnum <> p.number), '{}') AS taken,
           coalesce(array_agg(p.name) FILTER (WHERE t.attnum = p.number AND t.atttypid <> p.type), '{}') AS retyped
    FROM unnest(a.tenant_column || a.key_columns || a.watched_columns, a.column_numbers, a.column_types)
        p (name, number, type)
    JOIN pg_attribute t
        ON t.attrelid = a.relation AND a.numbered = a.relation::oid AND t.attnum > 0 AND NOT t.attisdropped
        AND (t.attname = p.name OR t.attnum = p.number)
) n
WHERE %(source)s::text IS NULL OR a.source = %(source)s
ORDER BY a.source
