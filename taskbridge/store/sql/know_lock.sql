-- Before a source gets another reader: batches of it whose writes were muted, and that are about to commit, come to their end, and
-- those after them see the reader.
SELECT pg_advisory_xact_lock({readers_key})
