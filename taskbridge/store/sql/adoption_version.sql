-- A part of other queries: the version of an adoption `a` and of its table, the row `c` of `pg_class`. The latter changes with
-- the columns, so that a process notices a numeric that came later: it must be read as text.
a.version::text || coalesce(':' || c.xmin::text, '')
