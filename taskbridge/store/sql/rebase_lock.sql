-- Before a rebase: nobody writes records or moves cursors until it ends, and whoever did has committed. Reading goes on.
LOCK TABLE invoices, records, sync_cursors, quarantine, taskbridge_cluster IN EXCLUSIVE MODE
