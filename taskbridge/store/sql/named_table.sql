-- The table that a name means, as SQL writes names. No row: there is none.
SELECT c.oid::bigint AS relation, c.relname::text AS name FROM pg_class c WHERE c.oid = to_regclass(%(table)s)
