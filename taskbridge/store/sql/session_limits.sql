-- How many sessions this role can have at once: by the server's limit, the role's own and the database's; null: any.
SELECT
    current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int
        - coalesce(current_setting('reserved_connections', true), '0')::int,
    nullif(r.rolconnlimit, -1),
    nullif(d.datconnlimit, -1)
FROM pg_roles r, pg_database d
WHERE r.rolname = session_user AND d.datname = current_database()
