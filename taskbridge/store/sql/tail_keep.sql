-- After all reminders of a page: what it has seen (null: no more than what is stored, which is not written again), unless
-- somebody else stored meanwhile, or began anew; then there is no row.
UPDATE {schema}.tails
SET snapshot = coalesce(%(seen)s::pg_snapshot, snapshot), stored_at = clock_timestamp()
WHERE pipeline = %(pipeline)s AND kind = %(kind)s AND (extract(epoch FROM stored_at) * 1000000)::bigint = %(stored_at)s
RETURNING (extract(epoch FROM stored_at) * 1000000)::bigint
