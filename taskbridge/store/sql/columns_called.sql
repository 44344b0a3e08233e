-- A part of other queries: what the columns of an adoption `a` are called now: tenant, keys and watched ones. A column that is
-- gone, and those of a table that was made anew, have the names under which they were adopted.
ARRAY(
    SELECT coalesce(t.attname::text, p.name)
    FROM unnest(a.tenant_column || a.key_columns || a.watched_columns, a.column_numbers)
        WITH ORDINALITY p (name, number, place)
    LEFT JOIN pg_attribute t
        ON t.attrelid = a.relation AND a.numbered = a.relation::oid AND t.attnum = p.number AND NOT t.attisdropped
    ORDER BY p.place
)
