-- A part of other queries: the version of an adoption `a` and of its table, the row `c` of `pg_class`. The latter changes with
-- the columns, so that a process notices a numeric that came later: it must be read as text. It changes with the table's name,
-- and that of its schema is a part of it: what a process has made reads the table by both. So are the columns that were adopted,
-- since a change of a column's name or type alone changes nothing else.
concat_ws(' ', a.version, c.xmin, c.relnamespace::regnamespace, ARRAY(
    SELECT concat_ws(' ', attname, atttypid, atttypmod) FROM pg_attribute WHERE attrelid = c.oid AND attnum = ANY (a.column_numbers) ORDER BY attnum
))
