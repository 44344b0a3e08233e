-- The names of the session's prepared statements.
SELECT name FROM pg_catalog.pg_prepared_statements
