-- Delete some ids of deliveries that came more than 30 days ago, the oldest first.
WITH old AS (
    SELECT ctid FROM {schema}.received WHERE received_at < now() - interval '30 days'
    ORDER BY received_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED
)
DELETE FROM {schema}.received r USING old WHERE r.ctid = old.ctid
RETURNING 1
