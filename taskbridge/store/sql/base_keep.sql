-- After all reminders of a base round: B is what it found handled, unless somebody else stored one meanwhile, or began anew.
UPDATE {schema}.tails SET base = %(seen)s::pg_snapshot
WHERE pipeline = %(pipeline)s AND base::text = %(before)s
