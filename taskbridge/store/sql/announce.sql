-- At the beginning of a batch's transaction: the session is called after its run, so that a successor can end it, and may
-- not be idle for ever. The mark goes with the transaction, so a handler that ends it by itself is found out. Where the
-- source is an adopted table, what the handler writes back into this tenant's rows makes no records (`muted`), so that it
-- does not wake itself; another pipeline that reads the source has to see it, though.
SELECT set_config('application_name', %(session)s, true),
       set_config('idle_in_transaction_session_timeout', %(idle)s, true),
       set_config('taskbridge.batch', %(token)s, true),
       set_config(
           'taskbridge.muted',
           CASE WHEN (SELECT count(*) FROM {schema}.pipelines WHERE source = %(source)s) < 2
               THEN '{schema}:' || %(source)s || ':' || %(tenant)s ELSE '' END,
           true
       )
