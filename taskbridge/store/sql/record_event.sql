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
