-- Whether this transaction is the only one that matches records again: it then has a lock until its end. The number is
-- arbitrary; nothing else may use it. A process that is frozen for a minute loses its session, and the lock with it.
SELECT pg_try_advisory_xact_lock(8386110886190934373),
       set_config('idle_in_transaction_session_timeout', '60s', true)
