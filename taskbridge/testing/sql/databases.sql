-- The databases of a cluster.

-- name: make_database
-- Create a database as a copy of another one.
CREATE DATABASE {name} TEMPLATE {template}

-- name: drop_database
-- Drop a database, and terminate its sessions.
DROP DATABASE {name} WITH (FORCE)

-- name: search_path
-- The default search path, from the next session on.
ALTER DATABASE {name} SET search_path = {schemas}
