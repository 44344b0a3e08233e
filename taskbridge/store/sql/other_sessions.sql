-- Processes of TaskBridge that are connected to this database, other than this one: workers, producers, commands.
SELECT pid
FROM pg_stat_activity
WHERE datname = current_database() AND (application_name = 'taskbridge' OR application_name LIKE 'taskbridge %%')
  AND pid <> pg_backend_pid()
ORDER BY pid
