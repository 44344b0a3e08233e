-- A batch was handled: move the cursor past it, if it still stands where the batch was read and still is ours. No row:
-- it is not, so nothing may take effect. Should the process freeze between this statement and its commit, the server
-- ends the session after 5 s instead of keeping the cursor's row locked.
UPDATE sync_cursors
SET snapshot = CASE WHEN %(finished)s THEN %(target)s::pg_snapshot ELSE snapshot END,
    target = CASE WHEN %(finished)s THEN NULL ELSE %(target)s::pg_snapshot END,
    at_xid = CASE WHEN %(finished)s THEN NULL ELSE %(at_xid)s::xid8 END,
    at_id = CASE WHEN %(finished)s THEN NULL ELSE %(at_id)s::bigint END,
    sweeps = sweeps + 1,
    records = records + %(records)s,
    last_taken_at = CASE WHEN %(records)s > 0 THEN last_run_at ELSE last_taken_at END,
    first_event_ms = coalesce(%(first_event_ms)s::integer, first_event_ms),
    failures = 0
WHERE pipeline = %(pipeline)s AND tenant = %(tenant)s AND owner = %(token)s AND sweeps = %(sweeps)s
RETURNING set_config('idle_in_transaction_session_timeout', '5s', true)
