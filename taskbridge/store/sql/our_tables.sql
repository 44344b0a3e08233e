-- The tables of ours, but for those that are kept.
SELECT tablename FROM pg_tables WHERE schemaname = %(schema)s AND tablename <> ALL (%(kept)s)
