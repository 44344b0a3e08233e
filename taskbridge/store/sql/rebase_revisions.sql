-- In this transaction the triggers leave ids as the rebase sets them.
SELECT set_config('taskbridge.keep_ids', 'on', true)
