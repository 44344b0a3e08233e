-- After all reminders of a page: what it has seen, unless somebody else stored another snapshot meanwhile, or began anew.
UPDATE {schema}.tails SET snapshot = %(seen)s::pg_snapshot, stored_at = clock_timestamp()
WHERE pipeline = %(pipeline)s AND kind = %(kind)s AND snapshot::text = %(before)s
