-- A batch was handled: move the cursor past it, if it still stands where the batch was read and still is ours. No row:
-- it is not, so nothing may take effect. Should the process freeze between this statement and its commit, the server
-- ends the session after the runner TTL, when the run counts as dead anyway, instead of keeping the cursor's row locked.
-- `batch` is the mark that `announce.sql` set, where there is a transaction around this statement.
-- `asked`: something of the pipeline failed, and this is the first success since; see `succeeded.sql`.
-- A batch without a position held only records out of quarantine: the cursor stays where it is.
UPDATE {schema}.sync_cursors
SET snapshot = CASE WHEN %(finished)s THEN %(target)s::pg_snapshot ELSE snapshot END,
    target = CASE WHEN %(finished)s THEN NULL ELSE %(target)s::pg_snapshot END,
    at_xid = CASE WHEN %(finished)s THEN NULL ELSE coalesce(%(at_xid)s::xid8, at_xid) END,
    at_id = CASE WHEN %(finished)s THEN NULL ELSE coalesce(%(at_id)s::bigint, at_id) END,
    sweeps = sweeps + 1,
    records = records + %(records)s,
    last_taken_at = CASE WHEN %(records)s > 0 THEN last_run_at ELSE last_taken_at END,
    first_event_ms = coalesce(%(first_event_ms)s::integer, first_event_ms),
    first_event_ms_sum = first_event_ms_sum + coalesce(%(first_event_ms)s::integer, 0),
    first_event_counts[%(first_event_bucket)s::integer] = coalesce(first_event_counts[%(first_event_bucket)s::integer], 0)
        + (%(first_event_ms)s::integer IS NOT NULL)::integer,
    failures = 0,
    batch_limit = %(batch_limit)s,
    suspects = %(suspects)s,
    attempts = %(attempts)s,
    outages = %(outages)s,
    deaths = %(deaths)s,
    suspect_revision = %(suspect_revision)s,
    failing_since = CASE WHEN %(suspects)s > 0 THEN failing_since END
WHERE pipeline = %(pipeline)s AND tenant = %(tenant)s AND owner = %(token)s AND sweeps = %(sweeps)s
RETURNING set_config('idle_in_transaction_session_timeout', %(idle_timeout)s, true),
          current_setting('taskbridge.batch', true) AS batch,
          (SELECT p.failed FROM {schema}.pipelines p WHERE p.pipeline = %(pipeline)s) AS asked
