-- After `reset_settings.sql`: the name of the run, by which a successor ends the session, and the limit of a statement.
SELECT set_config('application_name', %(session)s, true),
       set_config('statement_timeout', coalesce(%(limit)s, current_setting('statement_timeout')), true),
       current_setting('synchronous_commit')
