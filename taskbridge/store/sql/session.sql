-- Settings of a session or a transaction, resetting a session after a handler had it, and properties of the server.

-- name: setting
-- Sets a parameter of Postgres for the session or, if `scope` is LOCAL, for the transaction. Unlike `set_config`, SET takes no
-- snapshot, so a later BEGIN can change the isolation level, and statements after a LOCK see what the lock has waited for.
SET {scope} {name} = {value}

-- name: set_parameters
-- Sets parameters of Postgres for the transaction or the session, all in one round trip.
SELECT set_config(one.name, one.value, %(locally)s)
FROM unnest(%(names)s::text[], %(values)s::text[]) AS one (name, value)

-- name: open_session
-- The first message of a session. `pid` is the process of the login: behind a pooler the process of the server is another one,
-- and no setting may stay in its session. Returns whether it is the same, and how many seconds a statement may take (0: any
-- time).
SELECT pg_backend_pid() = %(pid)s,
       extract(epoch FROM current_setting('statement_timeout')::interval)::float8,
       array(SELECT set_config(one.name, one.value, pg_backend_pid() <> %(pid)s)
             FROM unnest(%(names)s::text[], %(values)s::text[]) AS one (name, value))

-- name: begin
-- READ COMMITTED, whatever the default of the database is: each statement sees what those before it have waited for.
BEGIN ISOLATION LEVEL READ COMMITTED

-- name: commit
-- Ends what `begin` or `begin_pass` has begun; it is sent together with what comes before it.
COMMIT

-- name: search_path
-- Unqualified names of this role are those of `public`, beginning with its next session.
ALTER ROLE CURRENT_USER IN DATABASE {database} SET search_path = public

-- name: clock
-- The time of the server.
SELECT clock_timestamp()

-- name: server
-- Properties of the server: its version as text, such as "17.6", and as a number (ten thousand times the major version plus the
-- minor one), the encoding of the database, such as "UTF8", and whether it is a standby.
SELECT current_setting('server_version') AS version, current_setting('server_version_num')::integer AS number,
       current_setting('server_encoding') AS encoding, pg_is_in_recovery() AS is_standby

-- name: backend_pid
-- The id of the server's process.
SELECT pg_backend_pid()

-- name: pooler_version
-- The version of PgBouncer from its console, such as "PgBouncer 1.18.0".
SHOW VERSION

-- name: deployment
-- Identifies the database and its cluster. A renamed database, or a promoted standby, is the same.
SELECT c.system_identifier AS cluster, d.oid, d.datname AS name
FROM pg_control_system() c, pg_database d
WHERE d.datname = current_database()

-- name: session_limits
-- How many sessions this role can have at once, by the limits of server, role and database; null: no limit.
SELECT
    current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int
        - coalesce(current_setting('reserved_connections', true), '0')::int AS of_server,
    nullif(r.rolconnlimit, -1) AS of_role,
    nullif(d.datconnlimit, -1) AS of_database
FROM pg_roles r, pg_database d
WHERE r.rolname = session_user AND d.datname = current_database()

-- name: announce_again
-- After `reset_settings`: the name of the run, by which a successor ends the session, and the statement timeout.
SELECT set_config('application_name', %(session)s, true),
       set_config('statement_timeout', coalesce(%(limit)s, current_setting('statement_timeout')), true)

-- name: as_left
-- The state in which a handler left its transaction: the mark of `announce`, if it is still that transaction, and whether its
-- commit waits for the disk, which the handler can choose.
SELECT pg_catalog.current_setting('taskbridge.batch', true), pg_catalog.current_setting('synchronous_commit')

-- name: fire_deferred
-- Deferred constraints and triggers belong to the handler's writes, so they run under its role, search_path and settings. The
-- statements that follow are ours.
SET CONSTRAINTS ALL IMMEDIATE

-- name: reset_settings
-- The following statements of a batch's transaction are ours, and no setting of the handler may affect them. The settings with
-- which the session was opened follow (`set_parameters`).
RESET ALL

-- name: reset_session
-- After the transaction of a batch whose handler had the session: what DISCARD ALL does, except for prepared statements. Those
-- of runs stay prepared, since planning them again takes longer than a run. `prepared` finds the handler's. RESET ALL leaves
-- authorization and role alone. The settings with which the session was opened follow (`set_parameters`).
RESET SESSION AUTHORIZATION;
RESET ROLE;
RESET ALL;
CLOSE ALL;
UNLISTEN *;
SELECT pg_advisory_unlock_all();
DISCARD TEMP;
DISCARD SEQUENCES

-- name: prepared
-- The names of the session's prepared statements.
SELECT name FROM pg_catalog.pg_prepared_statements

-- name: forget_prepared
-- Deallocate what a handler has prepared in a session of a pooler: by SQL, or by psycopg, whose names these are. Statements
-- that were prepared by other messages of the protocol are the pooler's own.
DO $$
DECLARE
    prepared text;
BEGIN
    FOR prepared IN SELECT name FROM pg_catalog.pg_prepared_statements WHERE from_sql OR name LIKE '\_pg3\_%' LOOP
        EXECUTE pg_catalog.format('DEALLOCATE %I', prepared);
    END LOOP;
END
$$

-- name: deallocate
-- Deallocate a prepared statement of a handler.
DEALLOCATE {name}

-- name: rollback
-- Ends the transaction of a batch that must not take effect.
ROLLBACK
