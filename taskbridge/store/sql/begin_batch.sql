-- A batch's transaction begins. The mark goes with it, so a handler that commits or rolls back by itself is found out.
SELECT set_config('taskbridge.batch', %(token)s, true)
