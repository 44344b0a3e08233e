-- How many records of the tenants in a list are pending, and of the other tenants are to be tried again, counted up to a
-- limit, and the age of the oldest, with its tenant. A record that changed is pending since it did.
WITH counted AS MATERIALIZED (
    (
        SELECT w.changed_at AS since, t.tenant
        FROM (SELECT unnest(%(tenants)s::text[]) COLLATE "C" AS tenant) t
        CROSS JOIN LATERAL {pending} w
        LIMIT %(size)s
    )
    UNION ALL
    (
        SELECT i.changed_at, i.tenant
        FROM (
            SELECT * FROM {schema}.quarantine WHERE pipeline = %(pipeline)s AND retry_at IS NOT NULL LIMIT %(size)s
        ) q
        {its_record}
        WHERE q.tenant <> ALL (%(tenants)s::text[])
    )
    LIMIT %(size)s
)
SELECT count(*) AS records, extract(epoch FROM now() - min(since))::float8 AS oldest_seconds,
       (SELECT tenant FROM counted ORDER BY since, tenant LIMIT 1) AS oldest_tenant
FROM counted
