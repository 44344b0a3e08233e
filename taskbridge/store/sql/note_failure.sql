-- A run failed: its row of the history says so, with the events that no row has yet. It is a statement of its own: the
-- failure is kept in any case, and nobody waits for a lock on the cursor.
-- A run that died could write no row itself, so the next one does. The first 16 digits of its token, `dead`, tell when it was
-- made. `own_events`: of these events, those that came after it. Where it moved the cursor before it died, it has a row.
WITH failed AS (
    SELECT c.*, nullif(%(dead)s, '') AS dead
    FROM {schema}.sync_cursors c
    WHERE c.pipeline = %(pipeline)s AND c.tenant = %(tenant)s AND c.owner = %(token)s
    FOR NO KEY UPDATE SKIP LOCKED
), noted AS (
    UPDATE {schema}.sync_cursors c
    SET unnoted_events = least(c.unnoted_events, %(own_events)s), unnoted_burst = false
    FROM failed f
    WHERE c.pipeline = f.pipeline AND c.tenant = f.tenant
)
INSERT INTO {schema}.runs AS r
    (pipeline, tenant, token, began_at, ended_at, reason, worker, events, burst_run, records, rejected, outcome, error,
     began_sweeps, sweeps, snapshot, target, at_xid, at_id)
SELECT f.pipeline, f.tenant, coalesce(f.dead, f.owner),
       least(to_timestamp(left(f.dead, 16)::float8 / 1000000), f.last_run_at), clock_timestamp(), %(reason)s, %(worker)s,
       least(greatest(0, f.unnoted_events - %(own_events)s), 2147483647),
       CASE
           WHEN f.unnoted_burst THEN 1
           WHEN EXISTS (
               SELECT FROM {schema}.runs d WHERE d.pipeline = f.pipeline AND d.tenant = f.tenant AND d.token = f.dead
           ) THEN 0
           ELSE %(burst_run)s
       END,
       0, 0, 'failed', left(%(error)s, 1000), f.sweeps, f.sweeps, f.snapshot, f.target, f.at_xid, f.at_id
FROM failed f
ON CONFLICT (pipeline, tenant, token, began_at) DO UPDATE
SET ended_at = excluded.ended_at, events = r.events + excluded.events, outcome = excluded.outcome, error = excluded.error
