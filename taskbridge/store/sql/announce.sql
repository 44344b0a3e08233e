-- At the beginning of a batch's transaction: the session is called after its run, so that a successor can end it, and may
-- not be idle for ever. The mark goes with the transaction, so a handler that ends it by itself is found out.
SELECT set_config('application_name', %(session)s, true),
       set_config('idle_in_transaction_session_timeout', %(idle)s, true),
       set_config('taskbridge.batch', %(token)s, true)
