-- The end of a session that a handler had: our own settings again, and nothing left of the handler's.

-- name: announce_again
-- After `reset_settings`: the name of the run, by which a successor ends the session, and the limit of a statement.
SELECT set_config('application_name', %(session)s, true),
       set_config('statement_timeout', coalesce(%(limit)s, current_setting('statement_timeout')), true),
       current_setting('synchronous_commit')

-- name: as_left
-- How a handler left its transaction: the mark of `announce`, if it is still that transaction, and whether its commit waits for
-- the disk, which is the handler's to choose.
SELECT pg_catalog.current_setting('taskbridge.batch', true), pg_catalog.current_setting('synchronous_commit')

-- name: fire_deferred
-- Deferred constraints and triggers belong to what the handler wrote, so they run under its role, search_path and settings.
-- What follows is ours.
SET CONSTRAINTS ALL IMMEDIATE

-- name: reset_settings
-- From here on the statements of a batch's transaction are ours, and none of the handler's settings may reach them.
-- What the session set when it was opened follows (`set_parameters`).
RESET ALL

-- name: reset_session
-- After the transaction of a batch whose handler had the session: what DISCARD ALL does, but for the prepared statements.
-- What a run of its own executes stays prepared, since to plan it anew takes longer than the run. `prepared` finds the
-- handler's. RESET ALL leaves authorization and role alone. What the session set when it was opened follows
-- (`set_parameters`).
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
-- Forget what a handler has prepared in a session of a pooler: by SQL, or by psycopg, whose names these are. What else was
-- prepared by a message of the protocol is the pooler's own.
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
-- Forget a prepared statement of a handler's.
DEALLOCATE {name}

-- name: rollback
-- Ends the transaction of a batch that is not to take effect.
ROLLBACK
