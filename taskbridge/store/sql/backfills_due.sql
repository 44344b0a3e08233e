-- The adopted tables whose rows from before were not all given a record, and of which nobody has chosen that. `again`: changes may
-- have been missed too. The names are those of the adoption where a column is gone.
SELECT a.source, quote_ident(n.nspname) || '.' || quote_ident(c.relname) AS called, cardinality(a.key_columns) AS keys,
       ARRAY(
           SELECT coalesce(t.attname::text, p.name)
           FROM unnest(a.tenant_column || a.key_columns || a.watched_columns, a.column_numbers)
               WITH ORDINALITY p (name, number, place)
           LEFT JOIN pg_attribute t
               ON t.attrelid = a.relation AND a.numbered = a.relation::oid AND t.attnum = p.number AND NOT t.attisdropped
           ORDER BY p.place
       ) AS columns, a.backfilled, a.again_below > 0 AS again
FROM {schema}.adopted a
JOIN pg_class c ON c.oid = a.relation
JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE a.ended_at IS NULL AND a.backfilled_at IS NULL AND NOT a.from_now_on
ORDER BY a.source
