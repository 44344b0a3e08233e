-- Write one record of a pipeline with criteria. No row: this message was recorded before.
INSERT INTO records (pipeline, message_id, tenant, delay_ms, criterion, reason, payload)
VALUES (
    %(pipeline)s, %(message_id)s, %(tenant)s, %(delay_ms)s, %(criterion)s, %(reason)s, %(payload)s::jsonb
)
ON CONFLICT (pipeline, message_id) DO NOTHING
RETURNING id
