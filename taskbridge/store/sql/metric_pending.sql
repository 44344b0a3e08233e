-- Of the tenants in a list: how many records lie after their cursors, counted up to a limit, and the age of the oldest
-- first one. A record that changed is pending since it did.
WITH cursors AS (
    SELECT %(pipeline)s::text COLLATE "C" AS pipeline, t.tenant,
           s.snapshot, s.target, s.at_xid, s.at_id
    FROM unnest(%(tenants)s::text[]) t (tenant)
    LEFT JOIN sync_cursors s ON s.pipeline = %(pipeline)s AND s.tenant = t.tenant
)
SELECT (
    SELECT count(*) FROM (
        SELECT FROM cursors c
        JOIN {rows} i ON {of_pipeline} i.tenant = c.tenant
        WHERE i.xid >= coalesce(pg_snapshot_xmin(c.snapshot), '0'::xid8)
          AND (c.snapshot IS NULL OR NOT pg_visible_in_snapshot(i.xid, c.snapshot))
          AND (pg_visible_in_snapshot(i.xid, c.target) AND (i.xid, i.id) <= (c.at_xid, c.at_id)) IS NOT TRUE
        LIMIT %(limit)s
    ) counted
) AS records, (
    SELECT extract(epoch FROM now() - min(oldest.since))::float8
    FROM cursors c
    CROSS JOIN LATERAL (
        SELECT coalesce(i.changed_at, i.recorded_at) AS since
        FROM {rows} i
        WHERE {of_pipeline} i.tenant = c.tenant
          AND (i.xid, i.id) > (coalesce(c.at_xid, pg_snapshot_xmin(c.snapshot), '0'::xid8), coalesce(c.at_id, -1))
          AND (c.snapshot IS NULL OR NOT pg_visible_in_snapshot(i.xid, c.snapshot))
        ORDER BY i.xid, i.id
        LIMIT 1
    ) oldest
) AS oldest_seconds
