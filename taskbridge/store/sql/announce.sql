-- At the beginning of a batch's transaction. The session gets the name of its run, so that a successor can end it, and may not
-- be idle for ever. The mark `batch` ends with the transaction: so `as_left.sql` sees whether the handler ended it. Where the
-- source is an adopted table, what the handler writes into its own tenant's rows makes no records (`muted`), so that it does
-- not wake itself. Where several pipelines read the source, the others have to see it, so nothing is muted;
-- `other_readers.sql` looks again.
SELECT set_config('application_name', %(session)s, true),
       set_config('idle_in_transaction_session_timeout', %(idle)s, true),
       set_config('taskbridge.batch', %(token)s, true),
       set_config(
           'taskbridge.muted',
           CASE WHEN EXISTS (SELECT FROM {schema}.adopted WHERE source = %(source)s AND ended_at IS NULL)
                   AND NOT EXISTS (SELECT FROM {schema}.pipelines WHERE source = %(source)s AND pipeline <> %(pipeline)s)
               THEN '{schema}:' || %(source)s || ':' || %(tenant)s ELSE '' END,
           true
       ) AS muted
