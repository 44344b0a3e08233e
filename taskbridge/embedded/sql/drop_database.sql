-- A database goes, with the sessions that are in it.
DROP DATABASE {name} WITH (FORCE)
