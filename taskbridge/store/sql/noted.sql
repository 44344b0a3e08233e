-- After the advances of `moves_cursor.sql`: each run's row of the history. A run of several batches has one row. It is a part of
-- the statement that moves the cursors, so it is there exactly if what it says took effect. `c` is a cursor as it was before: it
-- has the events that no row has yet.
, noted AS (
    INSERT INTO {schema}.runs AS r
        (pipeline, tenant, token, began_at, ended_at, reason, worker, events, burst_run, records, rejected, outcome,
         first_event_ms, began_sweeps, sweeps, snapshot, target, at_xid, at_id)
    SELECT v.pipeline, v.tenant, v.token, v.last_run_at, clock_timestamp(), v.reason, v.worker,
           least(c.unnoted_events, 2147483647), CASE WHEN c.unnoted_burst THEN 1 ELSE v.burst_run END,
           v.taken, v.rejected, 'handled', v.first_ms, v.began_sweeps, v.sweeps, v.snapshot, v.target, v.at_xid, v.at_id
    FROM moved v
    JOIN {schema}.sync_cursors c ON c.pipeline = v.pipeline AND c.tenant = v.tenant
    WHERE v.reason IS NOT NULL
    {noted_again}
)
