-- Whether the transaction has got the lock of who matches records again; until it ends nobody else gets it. The number is any
-- that nobody else has. A process that is frozen meanwhile loses the session, and so the lock.
SELECT pg_try_advisory_xact_lock(8386110886190934373),
       set_config('idle_in_transaction_session_timeout', '60s', true)
