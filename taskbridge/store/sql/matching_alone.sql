-- Whether the transaction got the lock of those who match records again. It has it until its end. The number is arbitrary;
-- nothing else may use it. A process that is frozen meanwhile loses its session, and the lock with it.
SELECT pg_try_advisory_xact_lock(8386110886190934373),
       set_config('idle_in_transaction_session_timeout', '60s', true)
