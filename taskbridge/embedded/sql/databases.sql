-- The databases of a cluster.

-- name: find_database
-- Whether the cluster has a database. No row: it has not.
SELECT 1 FROM pg_database WHERE datname = %(name)s

-- name: make_database
-- A database, as a copy of another one. {strategy} is empty, or a clause: how it is copied.
CREATE DATABASE {name} TEMPLATE {template} {strategy}

-- name: drop_database
-- A database goes, with the sessions that are in it.
DROP DATABASE {name} WITH (FORCE)

-- name: search_path
-- Which schemas unqualified names are looked up in, from the next session on.
ALTER DATABASE {name} SET search_path = {schemas}

-- name: flushes
-- Whether the cluster waits until the disk has what it writes.
SELECT current_setting('fsync')::boolean
