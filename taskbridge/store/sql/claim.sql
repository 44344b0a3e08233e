-- A run takes the cursor: from now on only its token may advance it. Tokens grow, so a run that was replaced cannot take
-- the cursor back. No row: a higher token owns it. The claim may be lost in a crash (asynchronous commit): then the
-- cursor has its former owner, and the run that claimed it is refused when it advances. A process that freezes while it
-- reads what follows holds the cursor's row, so its session has a name by which a successor ends it. The other settings are
-- for the batch that is read next; `batch_settings.sql` says why. A tenant's first cursor stands where its pipeline began.
-- A run that claims twice, as where its batch takes longer than the others', counts once. Events are told as those of the
-- burst so far: what a claim that was lost did not count, the next one does.
-- `keeps_history`: events are kept for the next row of the run history.
-- `looked` tells the tail that this run will read what is visible now, so that it need not remind the tenant of it.
INSERT INTO {schema}.sync_cursors AS c
    (pipeline, tenant, snapshot, looked, owner, runs, events, bursts, found_bursts, burst, burst_runs, burst_events,
     unnoted_events, unnoted_burst, last_run_at)
VALUES (%(pipeline)s, %(tenant)s, {pipeline_start}, pg_current_snapshot(), %(token)s, 1, %(burst_events)s,
        (%(burst_events)s > 0)::integer, (%(burst_events)s = 0)::integer, %(burst)s, %(burst_runs)s, %(burst_events)s,
        CASE WHEN %(keeps_history)s THEN %(burst_events)s ELSE 0 END, true, now())
ON CONFLICT (pipeline, tenant) DO UPDATE
SET owner = excluded.owner,
    looked = excluded.looked,
    runs = c.runs + (c.owner IS DISTINCT FROM excluded.owner)::integer,
    events = c.events + {new_events},
    bursts = c.bursts + CASE WHEN {same_burst} THEN 0 ELSE excluded.bursts END,
    found_bursts = c.found_bursts + CASE WHEN {same_burst} THEN 0 ELSE excluded.found_bursts END,
    burst = excluded.burst,
    burst_runs = excluded.burst_runs,
    burst_events = excluded.burst_events,
    unnoted_events = c.unnoted_events + CASE WHEN %(keeps_history)s THEN {new_events} ELSE 0 END,
    unnoted_burst = c.unnoted_burst OR NOT {same_burst},
    last_run_at = excluded.last_run_at
WHERE c.owner IS NULL OR c.owner <= excluded.owner
RETURNING set_config('application_name', %(session)s, true),
          set_config('synchronous_commit', 'off', true),
          {batch_settings}
