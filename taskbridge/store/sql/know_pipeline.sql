-- The first time that a pipeline is seen, the snapshot is kept at which its tenants' cursors begin. From a time: all that
-- was written then or later lies after it, and at the most a little of what was written before. Gives the source that it
-- reads, whoever saw it first.
WITH new AS (
    INSERT INTO {schema}.pipelines (pipeline, source, start)
    SELECT %(pipeline)s, %(source)s, CASE
        WHEN %(everything)s THEN '1:1:'
        WHEN %(since)s::timestamptz IS NULL THEN pg_current_snapshot()
        ELSE (
            SELECT format('%%s:%%s:', x.xid, x.xid)::pg_snapshot
            FROM (
                SELECT least((
                    SELECT r.xid FROM {schema}.records r
                    WHERE r.source = %(source)s AND r.changed_at >= %(since)s::timestamptz
                    ORDER BY r.xid LIMIT 1
                ), pg_snapshot_xmin(pg_current_snapshot())) AS xid
            ) x
        )
    END
    WHERE NOT EXISTS (SELECT FROM {schema}.pipelines WHERE pipeline = %(pipeline)s)
    ON CONFLICT DO NOTHING
    RETURNING source
)
SELECT source FROM new
UNION ALL
SELECT source FROM {schema}.pipelines WHERE pipeline = %(pipeline)s
