-- A part of other queries: the pending records of the tenant `t.tenant` in a pipeline, at most `size` of each kind: the
-- rest of the sweep that is on, what came after it, and what is to be tried again.
(
    (
        SELECT i.*
        FROM (SELECT {pipeline_start} AS start) s
        LEFT JOIN {schema}.sync_cursors c ON c.pipeline = %(pipeline)s AND c.tenant = t.tenant
        CROSS JOIN LATERAL (
            SELECT t.tenant, %(size)s::bigint AS size, v.*
            FROM (
                VALUES (coalesce(c.snapshot, s.start), c.target, c.at_xid, c.at_id), (c.target, NULL, NULL, NULL)
            ) v (snapshot, target, at_xid, at_id)
            WHERE v.snapshot IS NOT NULL
        ) p
        CROSS JOIN LATERAL {after_cursor} i
    )
    UNION ALL
    (
        SELECT i.*
        FROM {schema}.quarantine q
        {its_record}
        WHERE q.pipeline = %(pipeline)s AND q.tenant = t.tenant AND q.retry_at IS NOT NULL
        LIMIT %(size)s
    )
)
