-- One adopted table, or all of them, with what the table and its columns are called now. No `called`: the table was dropped.
-- A column that is gone, and those of a table that was made anew, have the names under which they were adopted.
SELECT a.source, a.relation::oid::bigint AS relation, a.name, a.tenant_column, a.key_columns, a.watched_columns, a.digest,
       {adoption_version} AS version, a.ended_at IS NOT NULL AS ended, a.backfilled, a.backfilled_at IS NOT NULL AS backfill_done,
       quote_ident(n.nspname) || '.' || quote_ident(c.relname) AS called,
       ARRAY(
           SELECT coalesce(t.attname::text, p.name)
           FROM unnest(a.tenant_column || a.key_columns || a.watched_columns, a.column_numbers)
               WITH ORDINALITY p (name, number, place)
           LEFT JOIN pg_attribute t
               ON t.attrelid = a.relation AND a.numbered = a.relation::oid AND t.attnum = p.number AND NOT t.attisdropped
           ORDER BY p.place
       ) AS columns_called
FROM {schema}.adopted a
LEFT JOIN pg_class c ON c.oid = a.relation
LEFT JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE %(source)s::text IS NULL OR a.source = %(source)s
ORDER BY a.source
