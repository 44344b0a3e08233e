-- A part of the trigger function of an adopted table: whether the columns that a statement needs are called as they were when
-- `a` was adopted (`named`), and whether tenant and key (`typed`) and the watched ones (`watched`) are of the same types. After a
-- restore of a dump the numbers are others.
SELECT count(t.attname) = count(*) AS named,
       bool_and(t.atttypid = p.type) FILTER (WHERE p.place <= {keys}) AS typed,
       bool_and(t.atttypid = p.type) FILTER (WHERE p.place > {keys}) AS watched
FROM unnest(a.tenant_column || a.key_columns || a.watched_columns, a.column_numbers, a.column_types)
    WITH ORDINALITY p (name, number, type, place)
LEFT JOIN pg_attribute t
    ON t.attrelid = whole AND t.attname = p.name::name AND NOT t.attisdropped
    AND (a.numbered <> whole OR t.attnum = p.number)
WHERE p.place <= {keys} OR TG_OP = 'UPDATE'
