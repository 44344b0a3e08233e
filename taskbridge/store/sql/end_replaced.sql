-- End the sessions of this tenant's runs that were replaced. Their tokens are lower, so nothing that they wrote can take
-- effect, but they hold locks as long as their process is frozen. Another session with the run's own token is one that the run
-- gave up inside a statement: nobody waits for that statement, and its locks would stay until it ends. Only sessions of this
-- role are ended: that needs no right. Each is waited for up to a second, until its locks are free.
SELECT pg_terminate_backend(pid, 1000)
FROM pg_stat_get_activity(NULL)
WHERE application_name LIKE %(of_tenant)s
  AND application_name COLLATE "C" <= %(session)s
  AND usesysid = current_user::regrole::oid
  AND datid = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND pid <> pg_backend_pid()
