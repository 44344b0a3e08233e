-- One step of prune: of the next records of a source by (xid, id), delete those that are old and that every pipeline of
-- the source has handled or discarded, with what quarantine holds of them and the ids of their messages. What no
-- criterion matched stays unless it was discarded. The version that a webhook brought goes with its record, unless another
-- comes at this moment: that one locks the version, and waits for the record next.
-- A discarded row of quarantine is locked, so that nobody asks for another try meanwhile. A record that changes meanwhile has
-- another xid when it is locked, and stays. Nothing that others have locked is waited for: they could wait for this transaction
-- next, which is a deadlock. A row of quarantine that stays for it goes with the rows whose record is gone.
-- Later ids were written later, except in a long transaction. So a page without an old row is the last one for this time,
-- unless it has rows of one transaction only: after a rebase all rows are of one.
-- `held`: how many old records of the page each pipeline and tenant holds back, and in which state. Without a reader the
-- pipeline is null.
WITH page AS MATERIALIZED (
    SELECT source, tenant, key, revision, xid, id, changed_at < %(before)s AS old,
           changed_at < %(before)s AND (tenant <> '' OR discarded_at IS NOT NULL) AS ours
    FROM {schema}.records
    WHERE source = %(source)s AND id > 0 AND (xid, id) > ((%(after)s::text[])[1]::xid8, (%(after)s::text[])[2]::bigint)
    ORDER BY xid, id
    LIMIT %(limit)s
), discarded AS MATERIALIZED (
    SELECT q.*
    FROM page p
    CROSS JOIN LATERAL (
        SELECT pipeline, tenant, external_id
        FROM {schema}.quarantine
        WHERE pipeline = ANY (%(readers)s::text[]) AND tenant = p.tenant AND external_id = p.key
          AND revision = p.revision AND discarded_at IS NOT NULL AND retry_at IS NULL
        FOR UPDATE SKIP LOCKED
    ) q
    WHERE p.ours
), held AS MATERIALIZED (
    SELECT p.xid, p.id, p.tenant, h.*
    FROM page p
    CROSS JOIN LATERAL (
        SELECT reader.pipeline,
               CASE
                   WHEN q.retry_at IS NOT NULL THEN 'retrying'
                   WHEN q.external_id IS NOT NULL THEN 'quarantined'
                   ELSE 'pending'
               END AS state
        FROM unnest(%(readers)s::text[]) AS reader (pipeline)
        LEFT JOIN {schema}.pipelines s ON s.pipeline = reader.pipeline
        LEFT JOIN {schema}.sync_cursors c ON c.pipeline = reader.pipeline AND c.tenant = p.tenant
        LEFT JOIN {schema}.quarantine q
            ON q.pipeline = reader.pipeline AND q.tenant = p.tenant AND q.external_id = p.key AND q.revision = p.revision
        LEFT JOIN discarded d
            ON d.pipeline = reader.pipeline AND d.tenant = p.tenant AND d.external_id = p.key
        WHERE CASE
            WHEN q.external_id IS NOT NULL THEN d.external_id IS NULL
            ELSE {schema}.is_handled(p.xid, p.id, coalesce(c.snapshot, s.start), c.target, c.at_xid, c.at_id) IS NOT TRUE
        END
        UNION ALL
        SELECT NULL, 'unread' WHERE cardinality(%(readers)s::text[]) = 0
    ) h
    WHERE p.ours AND p.tenant <> ''
), done AS MATERIALIZED (
    SELECT p.* FROM page p WHERE p.ours AND (p.xid, p.id) NOT IN (SELECT h.xid, h.id FROM held h)
), free AS MATERIALIZED (
    SELECT r.source, r.tenant, r.key, r.xid, r.id
    FROM done d
    JOIN {schema}.records r
        ON r.source = d.source AND r.tenant = d.tenant AND r.key = d.key AND (r.xid, r.id) = (d.xid, d.id)
    WHERE NOT %(dry_run)s
    FOR UPDATE OF r SKIP LOCKED
), deleted AS (
    DELETE FROM {schema}.records r USING free d
    WHERE r.source = d.source AND r.tenant = d.tenant AND r.key = d.key AND (r.xid, r.id) = (d.xid, d.id)
    RETURNING r.source, r.tenant, r.key
), unsaid AS (
    DELETE FROM {schema}.messages m USING deleted d WHERE m.source = d.source AND m.key = d.key
), versions AS MATERIALIZED (
    SELECT v.source, v.tenant, v.key
    FROM deleted d
    JOIN {schema}.record_versions v ON v.source = d.source AND v.tenant = d.tenant AND v.key = d.key
    FOR UPDATE OF v SKIP LOCKED
), unversioned AS (
    DELETE FROM {schema}.record_versions v USING versions d
    WHERE v.source = d.source AND v.tenant = d.tenant AND v.key = d.key
), alone AS MATERIALIZED (
    SELECT q.pipeline, q.tenant, q.external_id
    FROM deleted d
    JOIN {schema}.quarantine q
        ON q.pipeline = ANY (%(readers)s::text[]) AND q.tenant = d.tenant AND q.external_id = d.key
    FOR UPDATE OF q SKIP LOCKED
), orphans AS (
    DELETE FROM {schema}.quarantine q USING alone d
    WHERE q.pipeline = d.pipeline AND q.tenant = d.tenant AND q.external_id = d.external_id
    RETURNING 1
)
SELECT (SELECT count(*) FROM deleted) + (SELECT count(*) FROM done WHERE %(dry_run)s) AS pruned,
       (SELECT count(*) FROM orphans) AS quarantine,
       count(*) FILTER (WHERE ours) AS old,
       (
           SELECT coalesce(array_agg(ARRAY[pipeline, tenant, state, records::text]), '{}')
           FROM (SELECT pipeline, tenant, state, count(*) AS records FROM held GROUP BY 1, 2, 3) h
       ) AS held,
       (SELECT ARRAY[xid::text, id::text] FROM page ORDER BY xid DESC, id DESC LIMIT 1) AS last,
       count(*) = %(limit)s AND (bool_or(old) OR min(xid) = max(xid)) AS more
FROM page
