-- Per tenant of a list: how many of its records that were committed before a snapshot are pending, those that are tried
-- again included. Tenants with none are left out.
-- Where the cursor stands in the middle of a sweep, what that sweep has passed is handled.
SELECT c.tenant, w.records + retried.records AS records
FROM (
    SELECT %(pipeline)s::text COLLATE "C" AS pipeline, t.tenant, s.snapshot, s.target, s.at_xid, s.at_id
    FROM unnest(%(tenants)s::text[]) t (tenant)
    LEFT JOIN sync_cursors s ON s.pipeline = %(pipeline)s AND s.tenant = t.tenant
) c
CROSS JOIN LATERAL (
    SELECT count(*) AS records
    FROM {rows} i
    WHERE {of_pipeline} i.tenant = c.tenant
      AND i.xid >= coalesce(pg_snapshot_xmin(c.snapshot), '0'::xid8)
      AND (c.snapshot IS NULL OR NOT pg_visible_in_snapshot(i.xid, c.snapshot))
      AND (c.target IS NULL OR NOT pg_visible_in_snapshot(i.xid, c.target) OR (i.xid, i.id) > (c.at_xid, c.at_id))
      AND pg_visible_in_snapshot(i.xid, %(snapshot)s::pg_snapshot)
) w
CROSS JOIN LATERAL (
    SELECT count(*) AS records
    FROM quarantine q
    JOIN {rows} i ON {of_pipeline} i.tenant = q.tenant AND i.external_id = q.external_id AND i.revision = q.revision
    WHERE q.pipeline = c.pipeline AND q.tenant = c.tenant AND q.retry_at IS NOT NULL
      AND pg_visible_in_snapshot(i.xid, %(snapshot)s::pg_snapshot)
) retried
WHERE w.records + retried.records > 0
ORDER BY c.tenant
