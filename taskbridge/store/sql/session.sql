-- Settings of a session or a transaction, and what a server says of itself.

-- name: setting
-- Sets a parameter of Postgres for the session or, where `scope` is LOCAL, for the transaction. It is no `set_config`: a SET
-- takes no snapshot, so that BEGIN may name another isolation level after it, and what follows a LOCK sees what that has
-- waited for.
SET {scope} {name} = {value}

-- name: set_parameters
-- Sets parameters of Postgres, for the transaction or the session, all in one round trip. One with a value in `only_from` is
-- set only where it still has that value: whoever has set another one keeps it.
SELECT set_config(one.name, one.value, %(locally)s)
FROM unnest(%(names)s::text[], %(values)s::text[], %(only_from)s::text[]) AS one (name, value, only_from)
WHERE one.only_from IS NULL OR current_setting(one.name, true) = one.only_from

-- name: open_session
-- The first message of a session. `pid` is what the login said: behind a pooler the server's process is another one, and no
-- setting may stay in its session. Returns whether it is the same, and how many seconds a statement may take (0: any time).
SELECT pg_backend_pid() = %(pid)s,
       extract(epoch FROM current_setting('statement_timeout')::interval)::float8,
       array(SELECT set_config(one.name, one.value, pg_backend_pid() <> %(pid)s)
             FROM unnest(%(names)s::text[], %(values)s::text[]) AS one (name, value))

-- name: begin
-- READ COMMITTED, whatever the database's default is: each statement sees what those before it have waited for.
BEGIN ISOLATION LEVEL READ COMMITTED

-- name: commit
-- Ends what `begin` or `begin_round` has begun; it is sent together with what comes before it.
COMMIT

-- name: search_path
-- This role's unqualified names are those of `public`, from its next session on.
ALTER ROLE CURRENT_USER IN DATABASE {database} SET search_path = public

-- name: clock
-- The server's clock, in seconds of the Unix epoch.
SELECT extract(epoch FROM clock_timestamp())

-- name: server_version
-- The server's version for people, such as "17.6".
SHOW server_version

-- name: server_version_number
-- The server's version as a number: ten thousand times the major version, and the minor one.
SHOW server_version_num

-- name: encoding
-- The encoding in which the database stores texts, such as "UTF8".
SHOW server_encoding

-- name: backend_pid
-- The id of the server's process.
SELECT pg_backend_pid()

-- name: pooler_version
-- What the console of PgBouncer is, such as "PgBouncer 1.18.0".
SHOW VERSION

-- name: nothing
-- Nothing: what stands in the place of a statement where a program is run.
SELECT

-- name: deployment
-- Which database of which cluster this is. A renamed database, or a standby that was promoted, stays the same.
SELECT c.system_identifier AS cluster, d.oid, d.datname AS name
FROM pg_control_system() c, pg_database d
WHERE d.datname = current_database()

-- name: session_limits
-- How many sessions this role can have at once: by the server's limit, the role's own and the database's; null: any.
SELECT
    current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int
        - coalesce(current_setting('reserved_connections', true), '0')::int,
    nullif(r.rolconnlimit, -1),
    nullif(d.datconnlimit, -1)
FROM pg_roles r, pg_database d
WHERE r.rolname = session_user AND d.datname = current_database()
