-- From here on the statements of a batch's transaction are ours, and none of the handler's settings may reach them.
-- What the session set when it was opened follows (`set_parameters.sql`).
RESET ALL
