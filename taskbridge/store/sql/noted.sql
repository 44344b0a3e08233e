-- After the advances of `moves_cursor.sql`: each run's row of the history. A run of several batches has one row. It is a part of
-- the statement that moves the cursors, so it is there exactly if what it says took effect.
, noted AS (
    INSERT INTO {schema}.runs AS r
        (pipeline, tenant, token, began_at, ended_at, reason, worker, events, burst_run, records, rejected, outcome,
         first_event_ms, began_sweeps, sweeps, snapshot, target, at_xid, at_id)
    SELECT m.pipeline, m.tenant, m.token, v.last_run_at, clock_timestamp(), m.reason, m.worker, m.events, m.burst_run,
           m.records, m.rejected, 'handled', m.first_event_ms, m.sweeps, v.sweeps, v.snapshot, v.target, v.at_xid, v.at_id
    FROM moved v JOIN m ON m.pipeline = v.pipeline AND m.tenant = v.tenant
    WHERE m.reason IS NOT NULL
    ON CONFLICT (pipeline, tenant, token, began_at) DO UPDATE
    SET ended_at = excluded.ended_at,
        records = r.records + excluded.records,
        rejected = r.rejected + excluded.rejected,
        first_event_ms = coalesce(r.first_event_ms, excluded.first_event_ms),
        sweeps = excluded.sweeps,
        snapshot = excluded.snapshot,
        target = excluded.target,
        at_xid = excluded.at_xid,
        at_id = excluded.at_id
)
