-- When the records of each tenant of a pipeline were last taken, in milliseconds of the Unix epoch; only where that is no
-- longer than `within_ms` ago.
SELECT tenant, (extract(epoch FROM last_taken_at) * 1000)::bigint AS last_ms
FROM {schema}.sync_cursors
WHERE pipeline = %(pipeline)s AND last_taken_at > now() - %(within_ms)s * interval '1 millisecond'
