-- Where the rounds of a pipeline begin, which had none yet or whose snapshots are another cluster's. The tail begins at the
-- present, and the base, which finds all that is older, where the pipeline's cursors do.
INSERT INTO {schema}.tails AS t (pipeline, kind, snapshot)
VALUES (%(pipeline)s, 'tail', pg_current_snapshot()),
       (%(pipeline)s, 'base', {pipeline_start})
ON CONFLICT (pipeline, kind) DO UPDATE SET snapshot = excluded.snapshot, stored_at = excluded.stored_at
WHERE %(anew)s
