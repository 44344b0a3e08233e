-- The runs of a tenant since a record was written, up to the first one after which the record lay behind the cursor: that
-- run read it. `read`: it is that one. A token tells when its run was made, so runs of before are passed over by the key;
-- `floor` lies well before the record. Up to `size` runs are looked at.
SELECT pipeline, tenant, token, began_at, ended_at, reason, worker, events, burst_run, records, rejected, outcome, error,
       first_event_ms, read
FROM (
    SELECT r.*, sum(r.read::integer) OVER (ORDER BY r.token ROWS UNBOUNDED PRECEDING) - r.read::integer AS reads
    FROM (
        SELECT r.*, coalesce(r.records > 0 AND r.snapshot IS NOT NULL AND {schema}.is_handled(
                   %(xid)s::xid8, %(id)s, r.snapshot, r.target, r.at_xid, r.at_id
               ), false) AS read
        FROM {schema}.runs r
        WHERE r.pipeline = %(pipeline)s AND r.tenant = %(tenant)s AND r.token >= %(floor)s
          AND r.began_at >= %(since)s::timestamptz
        ORDER BY r.token
        LIMIT %(size)s
    ) r
) r
WHERE reads = 0 AND (read OR ended_at >= %(changed_at)s::timestamptz)
ORDER BY token
LIMIT %(limit)s
