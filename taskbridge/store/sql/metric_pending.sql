-- How many records of the tenants in a list are pending, and of the other tenants are to be tried again, counted up to a
-- limit, and the age of the oldest. A record that changed is pending since it did.
SELECT count(*) AS records, extract(epoch FROM now() - min(since))::float8 AS oldest_seconds
FROM (
    (
        SELECT w.changed_at AS since
        FROM (SELECT unnest(%(tenants)s::text[]) COLLATE "C" AS tenant) t
        CROSS JOIN LATERAL {pending} w
        LIMIT %(size)s
    )
    UNION ALL
    (
        SELECT i.changed_at
        FROM (
            SELECT * FROM {schema}.quarantine WHERE pipeline = %(pipeline)s AND retry_at IS NOT NULL LIMIT %(size)s
        ) q
        {its_record}
        WHERE q.tenant <> ALL (%(tenants)s::text[])
    )
    LIMIT %(size)s
) counted
