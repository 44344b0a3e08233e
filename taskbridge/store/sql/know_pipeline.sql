-- The first time that a pipeline is seen: what it reads, and the snapshot at which its cursors begin; null: now. Where it is
-- there already, nothing changes. It is a statement after `know_lock.sql`, so that `now` is after what that has waited for.
INSERT INTO {schema}.pipelines (pipeline, source, start)
VALUES (%(pipeline)s, %(source)s, coalesce(%(start)s::pg_snapshot, pg_current_snapshot()))
ON CONFLICT DO NOTHING
