-- Webhooks with this id, and the records that were written in the transaction that stored it and have not changed since, up
-- to `limit`. A row's `xmin` are the lower 32 bits of its transaction; the time says that the upper ones are right.
SELECT w.source, w.delivery, w.received_at, r.tenant, r.key
FROM {schema}.received w
CROSS JOIN (SELECT pg_snapshot_xmax(pg_current_snapshot())::text::numeric AS now) n
CROSS JOIN LATERAL (
    SELECT (floor(n.now / 4294967296) - CASE WHEN w.xmin::text::numeric >= n.now %% 4294967296 THEN 1 ELSE 0 END)
           * 4294967296 + w.xmin::text::numeric AS xid
) x
LEFT JOIN LATERAL (
    SELECT r.tenant, r.key FROM {schema}.records r
    WHERE r.source = w.source AND r.xid = x.xid::text::xid8 AND r.id > 0 AND r.changed_at = w.received_at
      AND x.xid >= 0
    LIMIT %(limit)s
) r ON true
WHERE w.delivery = %(delivery)s AND w.source = ANY (%(sources)s::text[])
LIMIT %(limit)s
