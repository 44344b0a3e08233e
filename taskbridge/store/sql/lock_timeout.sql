-- How long a statement of this transaction waits for a lock.
SELECT current_setting('lock_timeout')
