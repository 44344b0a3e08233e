-- A pipeline that was never looked at, or whose snapshots are another cluster's: the tail begins here, and the base, which
-- finds all that is older, where the pipeline does.
INSERT INTO {schema}.tails AS t (pipeline, kind, snapshot)
VALUES (%(pipeline)s, 'tail', pg_current_snapshot()),
       (%(pipeline)s, 'base', coalesce((SELECT start FROM {schema}.pipelines WHERE pipeline = %(pipeline)s), '1:1:'))
ON CONFLICT (pipeline, kind) DO UPDATE SET snapshot = excluded.snapshot, stored_at = excluded.stored_at
WHERE %(anew)s
