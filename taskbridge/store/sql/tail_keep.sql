-- After all reminders of a round: T is what it saw, unless somebody else stored one meanwhile, or began anew.
UPDATE {schema}.tails SET snapshot = %(seen)s::pg_snapshot
WHERE pipeline = %(pipeline)s AND snapshot::text = %(before)s
