-- Whether the cluster has a database. No row: it has not.
SELECT 1 FROM pg_database WHERE datname = %(name)s
