-- One record and how it stands in one pipeline: its place in the log, its row of quarantine, whether it is handled, when
-- the journal delivered it, and how many webhooks came in the very transaction that wrote it, with the id of one of them.
SELECT r.revision, r.deleted, r.recorded_at, r.changed_at, r.xid::text AS xid, r.id, r.criterion,
       q.cause, q.reason, q.attempts, q.quarantined_at, q.failing_since, q.retry_at, q.discarded_at,
       {schema}.is_handled(r.xid, r.id, coalesce(c.snapshot, p.start), c.target, c.at_xid, c.at_id) AS handled,
       pg_visible_in_snapshot(r.xid, p.start) AS skipped,
       c.failures, c.last_error, c.owner,
       d.delivered_at, d.token AS delivered_by,
       w.deliveries, w.delivery
FROM {schema}.records r
CROSS JOIN (SELECT {pipeline_start} AS start) p
LEFT JOIN {schema}.quarantine q
    ON q.pipeline = %(pipeline)s AND q.tenant = r.tenant AND q.external_id = r.key AND q.revision = r.revision
LEFT JOIN {schema}.sync_cursors c ON c.pipeline = %(pipeline)s AND c.tenant = r.tenant
LEFT JOIN LATERAL (
    SELECT d.delivered_at, d.token FROM {schema}.deliveries d
    WHERE d.pipeline = %(pipeline)s AND d.tenant = r.tenant AND d.external_id = r.key AND d.revision = r.revision
    ORDER BY d.delivered_at LIMIT 1
) d ON true
CROSS JOIN LATERAL (
    SELECT count(*) AS deliveries, min(w.delivery) AS delivery
    FROM (
        SELECT w.delivery FROM {schema}.received w WHERE w.received_at = r.changed_at AND w.source = r.source LIMIT 1000
    ) w
) w
WHERE r.source = %(source)s AND r.tenant = %(tenant)s AND r.key = %(key)s
