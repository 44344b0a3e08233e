-- The first time that a pipeline is seen, the snapshot is kept at which its tenants' cursors begin; none is given: now.
-- Gives the source that it reads, whoever saw it first. It waits for nobody who works on the records.
INSERT INTO {schema}.pipelines AS p (pipeline, source, start)
VALUES (%(pipeline)s, %(source)s, coalesce(%(start)s::pg_snapshot, pg_current_snapshot()))
ON CONFLICT (pipeline) DO UPDATE SET source = p.source
RETURNING source
