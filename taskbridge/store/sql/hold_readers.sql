-- Before the cursor moves past a batch whose writes were muted: no other pipeline begins to read the source until the commit, so
-- `other_readers.sql` sees all that there are. Who freezes from here on is ended as `advance.sql` says.
SELECT set_config('idle_in_transaction_session_timeout', %(idle_timeout)s, true), pg_advisory_xact_lock_shared({readers_key})
