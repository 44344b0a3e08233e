-- After the advances of `moves_cursor.sql`: each run's row of the history. A run of several batches has one row. It is a part of
-- the statement that moves the cursors, so it is there exactly if what it says took effect. `c` is a cursor as it was before: it
-- has the events that no row has yet.
, noted AS (
    INSERT INTO {schema}.runs AS r
        (pipeline, tenant, token, began_at, ended_at, reason, worker, events, burst_run, records, rejected, outcome,
         first_event_ms, began_sweeps, sweeps, snapshot, target, at_xid, at_id)
    SELECT m.pipeline, m.tenant, m.token, v.last_run_at, clock_timestamp(), m.reason, m.worker,
           least(c.unnoted_events, 2147483647), CASE WHEN c.unnoted_burst THEN 1 ELSE m.burst_run END,
           m.records, m.rejected, 'handled', m.first_event_ms, m.sweeps, v.sweeps, v.snapshot, v.target, v.at_xid, v.at_id
    FROM moved v
    JOIN m ON m.pipeline = v.pipeline AND m.tenant = v.tenant
    JOIN {schema}.sync_cursors c ON c.pipeline = v.pipeline AND c.tenant = v.tenant
    WHERE m.reason IS NOT NULL
    ON CONFLICT (pipeline, tenant, token, began_at) DO UPDATE
    SET ended_at = excluded.ended_at,
        events = r.events + excluded.events,
        records = r.records + excluded.records,
        rejected = r.rejected + excluded.rejected,
        first_event_ms = coalesce(r.first_event_ms, excluded.first_event_ms),
        sweeps = excluded.sweeps,
        snapshot = excluded.snapshot,
        target = excluded.target,
        at_xid = excluded.at_xid,
        at_id = excluded.at_id
)
