-- A batch was handled: move its cursor past it; see `moves_cursor.sql`. Should the process freeze between this statement
-- and its commit, the server ends the session after the runner TTL, when the run counts as dead anyway, instead of
-- keeping the cursor's row locked. Without records the commit does not wait for the disk: all that a crash can take with it is
-- a row of the history, whose events the next row has then.
WITH m AS (SELECT
    %(pipeline)s::text AS pipeline,
    %(tenant)s::text AS tenant,
    %(token)s::text AS token,
    %(sweeps)s::bigint AS sweeps,
    %(target)s::text AS target,
    %(finished)s::boolean AS finished,
    %(at_xid)s::text AS at_xid,
    %(at_id)s::bigint AS at_id,
    %(records)s::integer AS records,
    %(first_event_ms)s::integer AS first_event_ms,
    %(first_event_bucket)s::integer AS first_event_bucket,
    %(batch_limit)s::integer AS batch_limit,
    %(suspects)s::integer AS suspects,
    %(attempts)s::integer AS attempts,
    %(outages)s::integer AS outages,
    %(deaths)s::integer AS deaths,
    %(suspect_revision)s::bigint AS suspect_revision,
    %(reason)s::text AS reason,
    %(worker)s::text AS worker,
    %(burst_run)s::integer AS burst_run,
    %(rejected)s::integer AS rejected),
{moves_cursor}
SELECT asked, pipeline, tenant,
    set_config('idle_in_transaction_session_timeout', %(idle_timeout)s, true),
    set_config('synchronous_commit', CASE WHEN %(records)s = 0 THEN 'off' ELSE current_setting('synchronous_commit') END, true)
FROM moved
