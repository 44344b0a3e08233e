-- A relation of the schema where none of its relations is our version table. No row: the schema is ours, or there is none.
SELECT min(relname) FROM pg_class WHERE relnamespace = to_regnamespace(%(name)s) AND relkind <> 'i'
HAVING bool_and(relname <> %(ours)s)
