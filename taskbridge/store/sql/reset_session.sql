-- After the transaction of a batch whose handler had the session: what DISCARD ALL does, but for the prepared statements. What a run
-- of its own executes stays prepared, since to plan it anew takes longer than the run. `prepared.sql` finds the handler's.
-- RESET ALL leaves authorization and role alone. What the session set when it was opened follows (`set_parameters.sql`).
RESET SESSION AUTHORIZATION;
RESET ROLE;
RESET ALL;
CLOSE ALL;
UNLISTEN *;
SELECT pg_advisory_unlock_all();
DISCARD TEMP;
DISCARD SEQUENCES
