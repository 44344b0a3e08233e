-- A part of the trigger function of an adopted table: whether tenant and key (`named`) and the watched columns (`watched_named`)
-- are called as they were when `a` was adopted, and are of the same types (`typed`, `watched`). After a restore of a dump the
-- numbers are others. It asks about all of them, whatever the statement is: with a condition on that, Postgres would plan this
-- anew for each call.
SELECT count(t.attname) FILTER (WHERE p.place <= {keys}) = {keys} AS named,
       count(t.attname) = count(*) AS watched_named,
       bool_and(t.atttypid = p.type) FILTER (WHERE p.place <= {keys}) AS typed,
       bool_and(t.atttypid = p.type) FILTER (WHERE p.place > {keys}) AS watched
FROM (SELECT coalesce(pg_partition_root(TG_RELID), TG_RELID)::oid AS whole) one
CROSS JOIN unnest(a.tenant_column || a.key_columns || a.watched_columns, a.column_numbers, a.column_types)
    WITH ORDINALITY p (name, number, type, place)
LEFT JOIN pg_attribute t
    ON t.attrelid = one.whole AND t.attname = p.name::name AND NOT t.attisdropped
    AND (a.numbered <> one.whole OR t.attnum = p.number)
