-- How long a statement of this transaction waits for a lock, and how long it may take.
SELECT current_setting('lock_timeout') AS lock_timeout, current_setting('statement_timeout') AS statement_timeout
