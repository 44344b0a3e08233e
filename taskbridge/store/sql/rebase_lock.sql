-- Before a rebase: nobody writes records or moves cursors until it ends, and whoever did has committed. Reading goes on.
SET LOCAL lock_timeout = '10s';
LOCK TABLE invoices, records, sync_cursors, quarantine, taskbridge_cluster IN EXCLUSIVE MODE
