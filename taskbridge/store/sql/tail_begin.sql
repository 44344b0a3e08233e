-- A pipeline that was never looked at, or whose snapshots are another cluster's: the tail begins here, and the base, which
-- finds all that is older, where the pipeline does.
INSERT INTO {schema}.tails AS t (pipeline, snapshot, base)
SELECT %(pipeline)s, pg_current_snapshot(),
       coalesce((SELECT start FROM {schema}.pipelines WHERE pipeline = %(pipeline)s), '1:1:')
ON CONFLICT (pipeline) DO UPDATE SET snapshot = excluded.snapshot, base = excluded.base
WHERE %(anew)s
