-- Move cursors past batches that were handled, if they still stand where the batches were read and still are the runs'.
-- `m` has a row for each; a cursor that is not in `moved` did not move, and nothing of its batch may take effect.
-- `asked`: something of the pipeline failed, and this is the first success since; see `succeeded.sql`.
-- A batch without a position held only records out of quarantine: the cursor stays where it is.
-- `{noted}`: the run's row of the history; see `noted.sql`. It is left out where none is written; then `reason` is null.
-- What it needs of `m` goes through `moved`: a second look at `m` costs a run 15 µs.
moved AS (
    UPDATE {schema}.sync_cursors AS c
    SET snapshot = CASE WHEN m.finished THEN m.target::pg_snapshot ELSE c.snapshot END,
        target = CASE WHEN m.finished THEN NULL ELSE m.target::pg_snapshot END,
        at_xid = CASE WHEN m.finished THEN NULL ELSE coalesce(m.at_xid::xid8, c.at_xid) END,
        at_id = CASE WHEN m.finished THEN NULL ELSE coalesce(m.at_id, c.at_id) END,
        sweeps = c.sweeps + 1,
        records = c.records + m.records,
        last_taken_at = CASE WHEN m.records > 0 THEN c.last_run_at ELSE c.last_taken_at END,
        first_event_ms = coalesce(m.first_event_ms, c.first_event_ms),
        first_event_ms_sum = c.first_event_ms_sum + coalesce(m.first_event_ms, 0),
        first_event_counts[m.first_event_bucket] = coalesce(c.first_event_counts[m.first_event_bucket], 0)
            + (m.first_event_ms IS NOT NULL)::integer,
        unnoted_events = CASE WHEN m.reason IS NULL THEN c.unnoted_events ELSE 0 END,
        unnoted_burst = c.unnoted_burst AND m.reason IS NULL,
        failures = 0,
        batch_limit = m.batch_limit,
        suspects = m.suspects,
        attempts = m.attempts,
        outages = m.outages,
        deaths = m.deaths,
        suspect_revision = m.suspect_revision,
        failing_since = CASE WHEN m.suspects > 0 THEN c.failing_since END
    FROM m
    WHERE c.pipeline = m.pipeline AND c.tenant = m.tenant AND c.owner = m.token AND c.sweeps = m.sweeps
    RETURNING (SELECT p.failed FROM {schema}.pipelines p WHERE p.pipeline = c.pipeline) AS asked, c.pipeline, c.tenant,
              c.last_run_at, c.sweeps, c.snapshot, c.target, c.at_xid, c.at_id,
              m.token, m.reason, m.worker, m.burst_run, m.rejected, m.records AS taken, m.first_event_ms AS first_ms,
              m.sweeps AS began_sweeps
){noted}
