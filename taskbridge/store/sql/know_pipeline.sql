-- The first time that a pipeline is seen, the snapshot is kept at which its tenants' cursors begin; none is given: now.
-- Whoever comes second changes nothing. It waits for nobody who works on the records.
INSERT INTO {schema}.pipelines (pipeline, source, start)
VALUES (%(pipeline)s, %(source)s, coalesce(%(start)s::pg_snapshot, pg_current_snapshot()))
ON CONFLICT DO NOTHING
