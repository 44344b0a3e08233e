-- One run's statements: claim, read, advance, fail.

-- name: claim
-- A run takes the cursor: from now on only its token can advance it. Tokens grow, so a run that was replaced cannot take the
-- cursor back. No row: a higher token owns it. The commit is asynchronous, so a crash may lose the claim: the cursor then has
-- its former owner, and the advance of the run that claimed it is refused. A process that freezes while it reads the batch
-- keeps the cursor's row locked, so the session is named, and a successor can end it. The other settings are for the batch,
-- which is read next; see `batch_settings`. A tenant's first cursor begins where its pipeline begins.
-- A run that claims twice counts once. `burst_events` are those of the burst so far, so the next claim counts what a lost
-- claim did not.
-- `looked` tells the change poller that this run reads what is visible now, so that it need not remind the tenant of that.
INSERT INTO {schema}.sync_cursors AS c
    (pipeline, tenant, snapshot, looked, owner, runs, events, bursts, found_bursts, burst, burst_runs, burst_events,
     last_run_at)
VALUES (%(pipeline)s, %(tenant)s, {pipeline_start}, pg_current_snapshot(), %(token)s, 1, %(burst_events)s,
        (%(burst_events)s > 0)::integer, (%(burst_events)s = 0)::integer, %(burst)s, %(burst_runs)s, %(burst_events)s,
        now())
ON CONFLICT (pipeline, tenant) DO UPDATE
SET owner = excluded.owner,
    looked = excluded.looked,
    runs = c.runs + (c.owner IS DISTINCT FROM excluded.owner)::integer,
    events = c.events
        + CASE WHEN c.burst = excluded.burst THEN greatest(0, excluded.burst_events - c.burst_events) ELSE excluded.burst_events END,
    bursts = c.bursts + CASE WHEN c.burst = excluded.burst THEN 0 ELSE excluded.bursts END,
    found_bursts = c.found_bursts + CASE WHEN c.burst = excluded.burst THEN 0 ELSE excluded.found_bursts END,
    burst = excluded.burst,
    burst_runs = excluded.burst_runs,
    burst_events = excluded.burst_events,
    last_run_at = excluded.last_run_at
WHERE c.owner IS NULL OR c.owner <= excluded.owner
RETURNING set_config('application_name', %(session)s, true),
          set_config('synchronous_commit', 'off', true),
          {batch_settings}

-- name: owner
-- Whose token holds the cursor.
SELECT owner FROM {schema}.sync_cursors WHERE pipeline = %(pipeline)s AND tenant = %(tenant)s

-- name: batch_settings
-- A part of other queries: the settings under which a batch is read. The planner does not know how few rows lie after a cursor
-- and pass the two visibility tests; with outdated statistics it would read and sort all rows of a tenant for each batch.
-- Without parallel workers the parts of a batch come in the order in which they are written.
-- Without sorts no batch is read by the primary key, which would read all records of the tenant.
-- Row-level security would hide rows of an adopted table, and a missing row counts as deleted. With it off, a query to which
-- it would apply fails.
-- Before Postgres 18 a sort that cannot be avoided makes a plan so expensive that `jit` would compile it, which takes a
-- second.
set_config('row_security', 'off', true),
set_config('enable_seqscan', 'off', true),
set_config('enable_bitmapscan', 'off', true),
set_config('enable_sort', 'off', true),
set_config('max_parallel_workers_per_gather', '0', true),
set_config('jit', 'off', true)

-- name: plan_by_index
-- Before a batch is read by a run that has claimed its cursor. The claim itself makes the same settings.
SELECT {batch_settings}

-- name: read_batch
-- One batch: first the records that an operator took out of quarantine, then those after the cursor; each with the cursor's
-- columns. No row: the token does not own the cursor. One row with nulls for the record: nothing is pending, or the tenant is
-- paused.
-- `quarantined`: quarantine has a row of the record, possibly of an earlier revision; checked only if the tenant has any
-- there.
-- It is a statement of its own after the claim, because its snapshot must not be older than the cursor that it reads from: a
-- claim may wait for the cursor's row, and a statement takes its snapshot before it waits.
-- Documents are read as text, so that one that cannot be decoded does not fail the others. One that is stored in more than
-- `small` bytes is left out, with its size in `stored`, because a batch of those could exhaust the memory of the worker. The
-- size is read without the document. If `small` is negative no document is read.
-- Rows of an adopted table are read in this statement too, so that a record's revision and its row belong together. `adopted`
-- is the version of the source's adoption and of its table, for which the process must have made this statement.
-- `h` has an OFFSET so that it is computed once, and not for each record.
SELECT p.sweeps, p.batch_limit, p.suspects, p.attempts, p.deaths, p.suspect_revision, p.outages, p.failing_since, p.paused,
       p.size,
       p.target_text AS target,
       p.target IS NOT NULL AS resumed,
       {adopted_version} AS adopted,
       r.id, r.xid::text AS xid, r.external_id, r.revision,
       d.text AS document, d.stored, r.traceparent, r.retried,
       p.quarantined AND r.id IS NOT NULL AND EXISTS (
           SELECT FROM {schema}.quarantine q
           WHERE q.pipeline = p.pipeline AND q.tenant = p.tenant AND q.external_id = r.external_id
       ) AS quarantined, d.deleted
FROM (
    SELECT c.*, h.paused, h.quarantined,
           coalesce(c.target, pg_current_snapshot())::text AS target_text, -- here, since it is costly for each record
           CASE WHEN h.paused THEN 0 ELSE least(%(limit)s, CASE WHEN %(bisecting)s THEN c.batch_limit END) END AS size
    FROM {schema}.sync_cursors c
    CROSS JOIN LATERAL (
        SELECT EXISTS (SELECT FROM {schema}.pauses WHERE pipeline = c.pipeline AND tenant IN ('', c.tenant)) AS paused,
               EXISTS (SELECT FROM {schema}.quarantine WHERE pipeline = c.pipeline AND tenant = c.tenant) AS quarantined
        OFFSET 0
    ) h
    WHERE c.pipeline = %(pipeline)s AND c.tenant = %(tenant)s AND c.owner = %(token)s
    OFFSET 0
) p
LEFT JOIN LATERAL (
    (
        SELECT i.id, i.xid, i.key AS external_id, i.tenant, i.revision, i.document, i.deleted, i.traceparent, true AS retried
        FROM {schema}.quarantine q
        {its_record}
        WHERE q.pipeline = p.pipeline AND q.tenant = p.tenant AND q.retry_at IS NOT NULL
        ORDER BY q.retry_at, i.id
        LIMIT p.size
    )
    UNION ALL
    (
        SELECT i.id, i.xid, i.key, i.tenant, i.revision, i.document, i.deleted, i.traceparent, false
        FROM {after_cursor} i
    )
    LIMIT p.size
) r ON true
CROSS JOIN LATERAL {document} d

-- name: adopted_version
-- A part of other queries: the version of the source's adoption and of its table; null: it is not adopted.
(SELECT {adoption_version} FROM {schema}.adopted a LEFT JOIN pg_class c ON c.oid = a.relation WHERE a.source = %(source)s)

-- name: after_cursor
-- A part of other queries: the records of a tenant after a cursor, by (xid, id). `p` is the cursor (snapshot; target, at_xid
-- and at_id: its position in the middle of a sweep), with its tenant and the maximum of rows, `size`.
-- "Not visible in a snapshot" means: of a transaction that was in progress when it was taken, or of a later one. So it is two
-- ranges of one index, one after the other. A range from the oldest transaction in progress would read everything that was
-- committed since that one began. The index over all tenants has a condition that is not written here: with outdated
-- statistics, the planner would choose it and read the records of all tenants.
(
    (
        SELECT i.*
        FROM pg_snapshot_xip(p.snapshot) x (xid)
        CROSS JOIN LATERAL (
            SELECT l.*
            FROM {schema}.records l
            WHERE l.source = %(source)s AND l.tenant = p.tenant AND l.xid = x.xid
              AND l.id > CASE WHEN x.xid = p.at_xid THEN p.at_id ELSE -1 END
            ORDER BY l.id
            LIMIT p.size
        ) i
        WHERE x.xid >= coalesce(p.at_xid, '0'::xid8)
          AND (p.target IS NULL OR pg_visible_in_snapshot(x.xid, p.target))
        ORDER BY i.xid, i.id
        LIMIT p.size
    )
    UNION ALL
    (
        SELECT i.*
        FROM {schema}.records i
        WHERE i.source = %(source)s AND i.tenant = p.tenant
          AND (i.xid, i.id) > (
              greatest(p.at_xid, pg_snapshot_xmax(p.snapshot)),
              CASE WHEN p.at_xid >= pg_snapshot_xmax(p.snapshot) THEN p.at_id ELSE -1 END
          )
          AND i.xid < coalesce(pg_snapshot_xmax(p.target), '18446744073709551615'::xid8)
          AND (p.target IS NULL OR pg_visible_in_snapshot(i.xid, p.target))
        ORDER BY i.xid, i.id
        LIMIT p.size
    )
    LIMIT p.size
)

-- name: its_record
-- A part of other queries: joins each row `q` of quarantine with its record `i`. A row is about one revision: it has no
-- meaning once the record has changed or is gone.
JOIN {schema}.records i
    ON i.source = %(source)s AND i.tenant = q.tenant AND i.key = q.external_id AND i.revision = q.revision

-- name: pipeline_start
-- A part of other queries: the snapshot at which the cursors of a pipeline begin. `1:1:` sees no transaction: they begin with
-- everything.
coalesce((SELECT start FROM {schema}.pipelines WHERE pipeline = %(pipeline)s), '1:1:')

-- name: pending
-- A part of other queries: the pending records of the tenant `t.tenant` in a pipeline, at most `size` of each kind: the rest
-- of the current sweep, what came after it, and what is to be tried again.
(
    (
        SELECT i.*
        FROM (SELECT {pipeline_start} AS start) s
        LEFT JOIN {schema}.sync_cursors c ON c.pipeline = %(pipeline)s AND c.tenant = t.tenant
        CROSS JOIN LATERAL (
            SELECT t.tenant, %(size)s::bigint AS size, v.*
            FROM (
                VALUES (coalesce(c.snapshot, s.start), c.target, c.at_xid, c.at_id), (c.target, NULL, NULL, NULL)
            ) v (snapshot, target, at_xid, at_id)
            WHERE v.snapshot IS NOT NULL
        ) p
        CROSS JOIN LATERAL {after_cursor} i
    )
    UNION ALL
    (
        SELECT i.*
        FROM {schema}.quarantine q
        {its_record}
        WHERE q.pipeline = %(pipeline)s AND q.tenant = t.tenant AND q.retry_at IS NOT NULL
        LIMIT %(size)s
    )
)

-- name: evidence
-- A record has failed alone as often as it may: is the record the cause, or does everything fail? `others_succeed`: something
-- of the pipeline was handled since the tenant's last failure. `in_a_row`: how many records, up to 100, went to quarantine
-- because they failed, since anything was handled. `succeeded` explains why no other cursor is read.
SELECT coalesce(p.succeeded_at > c.failed_at, false) AS others_succeed,
       (
           SELECT count(*)
           FROM (
               SELECT FROM {schema}.quarantine q
               WHERE q.pipeline = c.pipeline AND q.cause = 'failed'
                 AND q.quarantined_at > coalesce(p.succeeded_at, '-infinity')
               LIMIT 100
           ) counted
       ) AS in_a_row
FROM {schema}.sync_cursors c
LEFT JOIN {schema}.pipelines p ON p.pipeline = c.pipeline
WHERE c.pipeline = %(pipeline)s AND c.tenant = %(tenant)s

-- name: advance
-- Batches were handled: move the cursors past them, if they still are where the batches were read, and still belong to the
-- runs. Each value is an array with an element for each batch. A cursor that is not in the result did not move, and nothing of
-- its batch may take effect. `asked`: something of the pipeline failed, and this is the first success since; see `succeeded`.
-- A batch without a position has only records out of quarantine: the cursor stays where it is.
-- `idle_timeout`: the commit follows in another message. If the process freezes before it, the server ends the session after
-- the runner TTL, when the run counts as dead anyway, and does not keep the cursor's row locked.
WITH {moved}
{moved_cursors}

-- name: moved_cursors
-- A part of `advance`: its result.
SELECT asked, pipeline, tenant,
       set_config(
           'idle_in_transaction_session_timeout',
           coalesce(%(idle_timeout)s::text, current_setting('idle_in_transaction_session_timeout')), true
       )
FROM moved

-- name: advance_with_quarantine
-- The same for one batch of which some records cannot be handled and go to quarantine, and of which others that were handled
-- leave it (`leaving`): those that were tried again, and those that have changed since.
WITH {moved}, left_quarantine AS (
    DELETE FROM {schema}.quarantine
    WHERE pipeline = (%(pipeline)s::text[])[1] AND tenant = (%(tenant)s::text[])[1]
      AND external_id = ANY (%(leaving)s::text[]) AND EXISTS (SELECT FROM moved)
), quarantined AS (
    INSERT INTO {schema}.quarantine AS q
        (pipeline, tenant, external_id, revision, reason, attempts, cause, failing_since, quarantined_at)
    SELECT (%(pipeline)s::text[])[1], (%(tenant)s::text[])[1], r.external_id, r.revision, r.reason,
           %(failures)s::integer, %(cause)s::text, %(failing_since)s::timestamptz, clock_timestamp()
    FROM unnest(%(external_ids)s::text[], %(revisions)s::bigint[], %(reasons)s::text[])
        AS r (external_id, revision, reason)
    WHERE EXISTS (SELECT FROM moved)
    ON CONFLICT (pipeline, tenant, external_id) DO UPDATE
    SET revision = excluded.revision,
        reason = excluded.reason,
        attempts = excluded.attempts + CASE WHEN q.revision = excluded.revision THEN q.attempts ELSE 0 END,
        cause = excluded.cause,
        failing_since = excluded.failing_since,
        quarantined_at = excluded.quarantined_at,
        retry_at = NULL,
        discarded_at = CASE WHEN q.revision = excluded.revision THEN q.discarded_at END
)
{moved_cursors}

-- name: moved
-- A part of `advance`: the values of the batches, and the update of their cursors.
m AS (SELECT * FROM unnest(
    %(pipeline)s::text[],
    %(tenant)s::text[],
    %(token)s::text[],
    %(sweeps)s::bigint[],
    %(target)s::text[],
    %(finished)s::boolean[],
    %(at_xid)s::text[],
    %(at_id)s::bigint[],
    %(records)s::integer[],
    %(first_event_ms)s::integer[],
    %(first_event_bucket)s::integer[],
    %(batch_limit)s::integer[],
    %(suspects)s::integer[],
    %(attempts)s::integer[],
    %(outages)s::integer[],
    %(deaths)s::integer[],
    %(suspect_revision)s::bigint[]
) AS m (
    pipeline, tenant, token, sweeps, target, finished, at_xid, at_id, records, first_event_ms, first_event_bucket,
    batch_limit, suspects, attempts, outages, deaths, suspect_revision
)), moved AS (
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
    RETURNING (SELECT p.failed FROM {schema}.pipelines p WHERE p.pipeline = c.pipeline) AS asked, c.pipeline, c.tenant
)

-- name: fail
-- A run failed: store the error for operators and, if its batch tells something about a record, the state of the search for
-- that record. If its batch could not be read, the next one is half as large. No row: another run owns the cursor, and nothing
-- is changed. The pipeline's next success is requested (`succeeded`) after the cursor is locked: a frozen process may hold
-- that lock, and must not hold up the whole pipeline.
WITH failing AS (
    UPDATE {schema}.sync_cursors
    SET failures = failures + 1,
        failed_runs = failed_runs + 1,
        last_error = %(error)s,
        failed_at = clock_timestamp(),
        failing_since = coalesce(failing_since, clock_timestamp()),
        batch_limit = CASE WHEN %(bisecting)s THEN %(batch_limit)s
                           WHEN %(unread)s::integer IS NOT NULL
                               THEN greatest(1, least(batch_limit, %(unread)s::integer) / 2)
                           ELSE batch_limit END,
        suspects = CASE WHEN %(bisecting)s THEN %(suspects)s ELSE suspects END,
        attempts = CASE WHEN %(bisecting)s THEN %(attempts)s ELSE attempts END,
        outages = CASE WHEN %(bisecting)s THEN %(outages)s ELSE outages END,
        deaths = CASE WHEN %(bisecting)s THEN %(deaths)s ELSE deaths END,
        suspect_revision = CASE WHEN %(bisecting)s THEN %(suspect_revision)s::bigint ELSE suspect_revision END
    WHERE pipeline = %(pipeline)s AND tenant = %(tenant)s AND owner = %(token)s
    RETURNING pipeline, failures
), asking AS (
    UPDATE {schema}.pipelines p SET failed = true FROM failing f WHERE p.pipeline = f.pipeline AND NOT p.failed
)
SELECT failures FROM failing

-- name: succeeded
-- Records of the pipeline were handled for the first time since something failed. `evidence` needs only this time, which is
-- later than every failure before it. So it is one row of the pipeline, written once after a failure and not with every batch.
-- It is written outside of the batch's transaction, whose process may freeze and would keep the row locked. A trial leaves
-- `failed` set, because its own record may go to quarantine after it.
UPDATE {schema}.pipelines
SET succeeded_at = clock_timestamp(), failed = %(trial)s
WHERE pipeline = %(pipeline)s AND failed

-- name: limit_batch
-- How many records the next batch may have, after the handler asked to wait. No row: another run owns the cursor.
UPDATE {schema}.sync_cursors SET batch_limit = %(batch_limit)s
WHERE pipeline = %(pipeline)s AND tenant = %(tenant)s AND owner = %(token)s
RETURNING batch_limit

-- name: hold_readers
-- Before the cursor moves past a batch whose changes were muted: no other pipeline begins to read the source before the
-- commit, so `other_readers` sees all of them. The session of a process that freezes is ended as with `advance`.
SELECT set_config('idle_in_transaction_session_timeout', %(idle_timeout)s, true), pg_advisory_xact_lock_shared({readers_key})

-- name: other_readers
-- After `hold_readers`: whether another pipeline reads the source by now, which needs the changes that were muted.
SELECT EXISTS (SELECT FROM {schema}.pipelines WHERE source = %(source)s AND pipeline <> %(pipeline)s)

-- name: readers_key
-- A part of other queries: the advisory lock of a source's readers.
hashtextextended('taskbridge readers {schema}:' || %(source)s, 0)

-- name: announce
-- At the beginning of a batch's transaction: the session is named after its run, so that a successor can end it, and gets an
-- idle timeout. The mark `batch` ends with the transaction, so `as_left` sees whether the handler ended it. If the source is
-- an adopted table, the handler's changes of its own tenant's rows make no records (`muted`), so that it does not wake itself.
-- If several pipelines read the source, the others need these records, so nothing is muted; `other_readers` checks again.
SELECT set_config('application_name', %(session)s, true),
       set_config('idle_in_transaction_session_timeout', %(idle)s, true),
       set_config('taskbridge.batch', %(token)s, true),
       set_config(
           'taskbridge.muted',
           CASE WHEN EXISTS (SELECT FROM {schema}.adopted WHERE source = %(source)s AND ended_at IS NULL)
                   AND NOT EXISTS (SELECT FROM {schema}.pipelines WHERE source = %(source)s AND pipeline <> %(pipeline)s)
               THEN %(source)s || ':' || %(pipeline)s || ':' || %(tenant)s ELSE '' END,
           true
       ) AS muted

-- name: end_replaced
-- End the sessions of this tenant's runs that were replaced. Their tokens are lower, so nothing that they wrote can take
-- effect, but they hold locks as long as their process is frozen. Another session with the run's own token is one that the run
-- gave up inside of a statement; its locks would be held until that ends. Only sessions of this role are ended, which needs no
-- privilege. Each is waited for up to a second, until its locks are released.
SELECT pg_terminate_backend(pid, 1000) AS ended
FROM pg_stat_get_activity(NULL)
WHERE application_name LIKE %(of_tenant)s
  AND application_name COLLATE "C" <= %(session)s
  AND usesysid = current_user::regrole::oid
  AND datid = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND pid <> pg_backend_pid()

-- name: last_runs
-- When the records of the next tenants of a pipeline, by name, were last taken, as Unix time in milliseconds; null if that is
-- longer ago than `within_ms`. Rows with null are returned too, so that a page reads exactly `limit` cursors.
SELECT tenant,
       CASE WHEN last_taken_at > now() - %(within_ms)s * interval '1 millisecond'
            THEN (extract(epoch FROM last_taken_at) * 1000)::bigint END AS last_ms
FROM {schema}.sync_cursors
WHERE pipeline = %(pipeline)s AND tenant > %(after)s
ORDER BY tenant
LIMIT %(limit)s

-- name: one_document
-- The document of one record that was read without it. No row: it was changed or deleted since.
SELECT d.text, d.deleted,
       {adopted_version} AS adopted
FROM (
    SELECT i.*, i.key AS external_id
    FROM {schema}.records i
    WHERE i.source = %(source)s AND i.tenant = %(tenant)s AND i.key = %(key)s AND i.revision = %(revision)s
) r
CROSS JOIN LATERAL {document} d

-- name: documents
-- The documents of records that `read_batch` left out for their size. A record that was changed or deleted since is missing:
-- its new revision lies after the cursor. `adopted` is as in `read_batch`.
SELECT r.id, d.text, d.deleted,
       {adopted_version} AS adopted
FROM (
    SELECT i.*, i.key AS external_id
    FROM unnest(%(xids)s::xid8[], %(ids)s::bigint[]) AS one (xid, id)
    JOIN {schema}.records i
        ON i.source = %(source)s AND i.tenant = %(tenant)s AND i.xid = one.xid AND i.id = one.id
) r
CROSS JOIN LATERAL {document} d

-- name: recorded_document
-- A part of other queries: the document that lies with its record `r`, as text.
(
    SELECT CASE WHEN pg_column_size(r.document) <= %(small)s THEN r.document::text END AS text,
           CASE WHEN pg_column_size(r.document) > %(small)s THEN pg_column_size(r.document) END AS stored,
           coalesce(r.deleted, false) AS deleted
)
