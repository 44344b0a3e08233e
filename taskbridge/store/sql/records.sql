-- Writing records, and messages that no criterion matched.

-- name: record_delivery
-- The journal: the batch's records were delivered, in the transaction that advances the cursor.
INSERT INTO {schema}.deliveries (pipeline, tenant, external_id, revision, token)
SELECT %(pipeline)s, %(tenant)s, record.external_id, record.revision, %(token)s
FROM unnest(%(external_ids)s::text[], %(revisions)s::bigint[]) AS record (external_id, revision)

-- name: record_document
-- The document of one record as text, no longer than a page shows. Null: the row of an adopted table has it.
SELECT left(jsonb_pretty(document), %(longest)s), length(jsonb_pretty(document)) > %(longest)s
FROM {schema}.records
WHERE source = %(source)s AND tenant = %(tenant)s AND key = %(key)s

-- name: record_many
-- Write or update records of one source. Those that are there with the very same document stay untouched and give no row.
-- The arrays are sent as binary: as text each quotation mark in a document would be escaped, one by one.
INSERT INTO {schema}.records AS r (source, tenant, key, document, traceparent)
SELECT %(source)s, n.tenant, n.key, n.document::jsonb, %(traceparent)s::text
FROM unnest(%(tenants)b::text[], %(keys)b::text[], %(documents)b::text[]) n (tenant, key, document)
ORDER BY n.tenant, n.key -- so that two of these never wait for each other
ON CONFLICT (source, tenant, key) DO UPDATE
SET document = excluded.document, deleted = false, traceparent = excluded.traceparent
WHERE r.deleted OR r.document IS DISTINCT FROM excluded.document
RETURNING tenant

-- name: record_event
-- Write the record of one message. No row: this message was recorded before. A record of the same key that is no message
-- gets the message's content. The document is sent as text: a driver may have been told to encode what it takes for jsonb.
WITH message AS (
    INSERT INTO {schema}.messages (source, key) VALUES (%(source)s, %(key)s) ON CONFLICT DO NOTHING RETURNING source, key
)
INSERT INTO {schema}.records (source, tenant, key, document, delay_ms, criterion, reason, traceparent)
SELECT source, %(tenant)s, key, %(document)s::text::jsonb, %(delay_ms)s, %(criterion)s, %(reason)s, %(traceparent)s::text
FROM message
ON CONFLICT (source, tenant, key) DO UPDATE
SET document = excluded.document, deleted = false, delay_ms = excluded.delay_ms, criterion = excluded.criterion,
    traceparent = excluded.traceparent
RETURNING id

-- name: receive
-- Store the record of one webhook if its delivery is new and there is no newer version of the record. A record with an equal
-- document is not touched. A webhook without a document deletes it.
-- If another transaction is storing the same delivery, this waits for it, to know whether it came first.
WITH fresh AS (
    INSERT INTO {schema}.received (source, delivery)
    SELECT %(source)s::text, %(delivery)s::text WHERE %(delivery)s::text IS NOT NULL
    ON CONFLICT DO NOTHING
    RETURNING delivery
), given AS MATERIALIZED (
    SELECT %(delivery)s::text IS NULL OR EXISTS (SELECT FROM fresh) AS is_new
), versioned AS (
    INSERT INTO {schema}.record_versions AS v (source, tenant, key, version)
    SELECT %(source)s::text, %(tenant)s::text, %(key)s::text, %(version)s::numeric
    FROM given WHERE is_new AND %(version)s::numeric IS NOT NULL
    ON CONFLICT (source, tenant, key) DO UPDATE SET version = excluded.version
    WHERE v.version <= excluded.version
    RETURNING v.version
), written AS (
    INSERT INTO {schema}.records AS r (source, tenant, key, document, deleted, traceparent)
    SELECT %(source)s::text, %(tenant)s::text, %(key)s::text, %(document)s::text::jsonb, %(document)s::text IS NULL,
        %(traceparent)s::text
    FROM given WHERE is_new AND (%(version)s::numeric IS NULL OR EXISTS (SELECT FROM versioned))
    ON CONFLICT (source, tenant, key) DO UPDATE
    SET document = excluded.document, deleted = excluded.deleted, traceparent = excluded.traceparent
    WHERE r.deleted <> excluded.deleted OR r.document IS DISTINCT FROM excluded.document
    RETURNING r.key
)
SELECT is_new, EXISTS (SELECT FROM written) AS changed FROM given

-- name: has_records
-- Whether a source has any record.
SELECT EXISTS (SELECT FROM {schema}.records WHERE source = %(source)s)

-- name: own_records
-- The records of a source that this transaction has written after `mark`, and those in `left`, for a test in which nothing
-- commits: by tenant in order of writing, beginning with the tenant that was written first.
SELECT tenant, key, revision, id, so_far
FROM
  {schema}.records,
  (SELECT coalesce(nullif(current_setting(%(mark)s, true), ''), '0')::bigint AS so_far) AS earlier
WHERE source = %(source)s
  AND id > 0
  AND tenant <> ''
  AND xid IN (pg_current_xact_id(), '1') -- see `own_delivered`
  AND (
    id > so_far
    OR revision = ANY (string_to_array(current_setting(%(left)s, true), ',')::bigint[])
  )
ORDER BY min(id) OVER (PARTITION BY tenant), id

-- name: waiting_delays
-- For each tenant of a list, the smallest delay of its waiting records. Tenants without any are left out.
SELECT t.tenant, w.delay_ms
FROM (SELECT unnest(%(tenants)s::text[]) COLLATE "C" AS tenant) t
CROSS JOIN LATERAL (SELECT min(coalesce(p.delay_ms, %(smallest)s)) AS delay_ms FROM {pending} p) w
WHERE w.delay_ms IS NOT NULL

-- name: waiting_records
-- The waiting records of one tenant: their number, and the one with the smallest delay.
SELECT count(*) OVER () AS waiting, coalesce(w.delay_ms, %(smallest)s) AS delay_ms, coalesce(w.criterion, '') AS criterion
FROM (SELECT %(tenant)s::text COLLATE "C" AS tenant) t
CROSS JOIN LATERAL {pending} w
ORDER BY delay_ms, w.id
LIMIT 1

-- name: match_again
-- A record that no criterion matched has been matched after all, or has another reason. The trigger renews its xid, so
-- the next sweep of its tenant takes it. No row: it was matched or discarded in the meantime.
UPDATE {schema}.records
SET tenant = %(tenant)s, delay_ms = %(delay_ms)s, criterion = %(criterion)s, reason = %(reason)s
WHERE source = %(source)s AND tenant = '' AND discarded_at IS NULL AND key = %(key)s
RETURNING id

-- name: forget_received
-- Delete some ids of deliveries that arrived more than 30 days ago, the oldest first.
WITH old AS (
    SELECT ctid FROM {schema}.received WHERE received_at < now() - interval '30 days'
    ORDER BY received_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED
)
DELETE FROM {schema}.received r USING old WHERE r.ctid = old.ctid
RETURNING 1

-- name: unmatched
-- Records that no criterion matched, oldest first, after the one with the id and key `after`; without `thin`, no records of
-- adopted tables.
SELECT id, key, reason, document, recorded_at
FROM {schema}.records
WHERE source = %(source)s AND tenant = '' AND discarded_at IS NULL AND (id, key) > (%(after)s, %(after_key)s)
    AND (%(thin)s OR document IS NOT NULL)
ORDER BY id, key
LIMIT %(limit)s

-- name: unmatched_keys
-- The message ids of the unmatched records, or of those in a list; with a reason, only those that have it. Records that say that
-- changes of an adopted table were missed stay until it is adopted again: that is stored nowhere else.
SELECT r.key FROM {schema}.records r
WHERE r.source = %(source)s AND r.tenant = '' AND r.discarded_at IS NULL
  AND (%(message_ids)s::text[] IS NULL OR r.key = ANY (%(message_ids)s))
  AND (%(reason)s::text IS NULL OR r.reason = %(reason)s)
  AND NOT (
      {says_missed}
      AND EXISTS (SELECT FROM {schema}.adopted a WHERE a.source = %(source)s AND a.ended_at IS NULL)
  )
ORDER BY r.key

-- name: unmatched_sources
-- How many unmatched records each source has, whether or not a pipeline reads it; at most `size` are counted in all.
SELECT source, count(*)
FROM (SELECT source FROM {schema}.records WHERE tenant = '' AND discarded_at IS NULL LIMIT %(size)s) counted
GROUP BY source
ORDER BY source

-- name: count_unmatched
-- How many records of a source no criterion matched.
SELECT count(*) FROM {schema}.records WHERE source = %(source)s AND tenant = '' AND discarded_at IS NULL

-- name: discard_unmatched
-- Discard some unmatched records. They stay until they are pruned, so that a repeated message is recognized. This does not wait
-- for locked records, since the writer could wait for this statement next, which is a deadlock: such a row is `held`.
WITH wanted AS MATERIALIZED (
    SELECT source, tenant, key FROM {schema}.records
    WHERE source = %(source)s AND tenant = '' AND discarded_at IS NULL AND key = ANY (%(keys)s::text[])
), free AS MATERIALIZED (
    SELECT r.source, r.tenant, r.key
    FROM wanted w
    JOIN {schema}.records r ON r.source = w.source AND r.tenant = w.tenant AND r.key = w.key
    WHERE r.discarded_at IS NULL
    FOR NO KEY UPDATE OF r SKIP LOCKED
), given_up AS (
    UPDATE {schema}.records r SET discarded_at = now()
    FROM free f
    WHERE r.source = f.source AND r.tenant = f.tenant AND r.key = f.key
    RETURNING r.key
)
SELECT w.key, g.key IS NULL AS held FROM wanted w LEFT JOIN given_up g ON g.key = w.key
