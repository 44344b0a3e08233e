-- One batch: first the records that an operator took out of quarantine, then those after the cursor; each with where the
-- cursor stands. No row: the token does not own the cursor. One row with nulls for the record: nothing is pending, or a pause
-- holds the tenant.
-- `quarantined`: quarantine has a row of the record, be it of an earlier revision; asked only where the tenant has any there.
-- It is a statement of its own, after the claim: its snapshot must not be older than the cursor that it reads from. A claim may
-- wait for the cursor's row, and a statement takes its snapshot before it waits.
-- Documents come as text, so that one that cannot be decoded does not fail the others. One that is stored in more than `small`
-- bytes stays behind, with its size in `stored`: a batch of those could fill the worker's memory. The size is read without the
-- document. With `small` below zero no document is read.
-- The rows of an adopted table are read in this statement too, so that a record's revision and its row go together. `adopted`
-- is the version of the source's adoption and of its table; the process must have made this statement for that one.
-- `h` has an OFFSET so that it is computed once, and not for each record.
SELECT p.sweeps, p.batch_limit, p.suspects, p.attempts, p.deaths, p.suspect_revision, p.outages, p.failing_since, p.paused,
       p.size,
       p.target_text AS target,
       p.target IS NOT NULL AS resumed,
       (SELECT {adoption_version} FROM {schema}.adopted a LEFT JOIN pg_class c ON c.oid = a.relation WHERE a.source = %(source)s) AS adopted,
       p.unnoted_events > 0 AS unnoted,
       r.id, r.xid::text AS xid, r.external_id, r.revision,
       d.text AS document, d.stored, r.traceparent, r.retried,
       p.quarantined AND r.id IS NOT NULL AND EXISTS (
           SELECT FROM {schema}.quarantine q
           WHERE q.pipeline = p.pipeline AND q.tenant = p.tenant AND q.external_id = r.external_id
       ) AS quarantined, d.deleted
FROM (
    SELECT c.*, h.paused, h.quarantined,
           coalesce(c.target, pg_current_snapshot())::text AS target_text, -- here, since it is costly for each record
           CASE WHEN h.paused THEN 0 ELSE least(%(limit)s, CASE WHEN %(bisecting)s THEN c.batch_limit END) END AS size
    FROM {schema}.sync_cursors c
    CROSS JOIN LATERAL (
        SELECT EXISTS (SELECT FROM {schema}.pauses WHERE pipeline = c.pipeline AND tenant IN ('', c.tenant)) AS paused,
               EXISTS (SELECT FROM {schema}.quarantine WHERE pipeline = c.pipeline AND tenant = c.tenant) AS quarantined
        OFFSET 0
    ) h
    WHERE c.pipeline = %(pipeline)s AND c.tenant = %(tenant)s AND c.owner = %(token)s
    OFFSET 0
) p
LEFT JOIN LATERAL (
    (
        SELECT i.id, i.xid, i.key AS external_id, i.tenant, i.revision, i.document, i.deleted, i.traceparent, true AS retried
        FROM {schema}.quarantine q
        {its_record}
        WHERE q.pipeline = p.pipeline AND q.tenant = p.tenant AND q.retry_at IS NOT NULL
        ORDER BY q.retry_at, i.id
        LIMIT p.size
    )
    UNION ALL
    (
        SELECT i.id, i.xid, i.key, i.tenant, i.revision, i.document, i.deleted, i.traceparent, false
        FROM {after_cursor} i
    )
    LIMIT p.size
) r ON true
CROSS JOIN LATERAL {document} d
