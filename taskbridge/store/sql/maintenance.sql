-- Pipelines and sources, pruning, and the rebase after a restore.

-- name: prune_before
-- The moment before which a record is old, by the server's clock.
SELECT now() - make_interval(secs => %(seconds)s)

-- name: prune_deliveries
-- One step of prune: of the next deliveries by id, delete the old ones.
WITH page AS MATERIALIZED (
    SELECT id, pipeline, delivered_at < %(before)s AS old
    FROM {schema}.deliveries WHERE id > %(after)s ORDER BY id LIMIT %(limit)s
), done AS MATERIALIZED (
    SELECT id FROM page WHERE old AND (%(pipeline)s::text IS NULL OR pipeline = %(pipeline)s)
), deleted AS (
    DELETE FROM {schema}.deliveries j USING done d WHERE NOT %(dry_run)s AND j.id = d.id RETURNING 1
)
SELECT (SELECT count(*) FROM deleted) + (SELECT count(*) FROM done WHERE %(dry_run)s) AS pruned,
       0 AS quarantine,
       (SELECT count(*) FROM done) AS old,
       max(id) AS last,
       count(*) = %(limit)s AND bool_or(old) AS more
FROM page

-- name: prune_quarantine
-- One step of prune: of the next rows of quarantine by key, delete the old ones whose record is gone or has changed. One that
-- is written again in the meantime has another `quarantined_at` and stays, and so does one that a run has locked: this does not
-- wait for it.
WITH page AS MATERIALIZED (
    SELECT pipeline, tenant, external_id, revision, quarantined_at
    FROM {schema}.quarantine
    WHERE (pipeline, tenant, external_id) > ((%(after)s::text[])[1], (%(after)s::text[])[2], (%(after)s::text[])[3])
    ORDER BY pipeline, tenant, external_id
    LIMIT %(limit)s
), done AS MATERIALIZED (
    SELECT p.*
    FROM page p
    WHERE p.quarantined_at < %(before)s
      AND (%(pipeline)s::text IS NULL OR p.pipeline = %(pipeline)s)
      AND EXISTS (SELECT FROM {schema}.pipelines s WHERE s.pipeline = p.pipeline)
      AND NOT EXISTS (
          SELECT FROM {schema}.pipelines s
          JOIN {schema}.records r
              ON r.source = s.source AND r.tenant = p.tenant AND r.key = p.external_id AND r.revision = p.revision
          WHERE s.pipeline = p.pipeline
      )
), free AS MATERIALIZED (
    SELECT q.pipeline, q.tenant, q.external_id
    FROM done d
    JOIN {schema}.quarantine q
        ON q.pipeline = d.pipeline AND q.tenant = d.tenant AND q.external_id = d.external_id
        AND q.revision = d.revision AND q.quarantined_at = d.quarantined_at
    WHERE NOT %(dry_run)s
    FOR UPDATE OF q SKIP LOCKED
), deleted AS (
    DELETE FROM {schema}.quarantine q USING free d
    WHERE q.pipeline = d.pipeline AND q.tenant = d.tenant AND q.external_id = d.external_id
    RETURNING 1
)
SELECT 0 AS pruned,
       (SELECT count(*) FROM deleted) + (SELECT count(*) FROM done WHERE %(dry_run)s) AS quarantine,
       0 AS old,
       (
           SELECT ARRAY[pipeline, tenant, external_id] FROM page
           ORDER BY pipeline DESC, tenant DESC, external_id DESC LIMIT 1
       ) AS last,
       count(*) = %(limit)s AS more
FROM page

-- name: prune_records
-- One step of prune: of the next records of a source by (xid, id), delete those that are old and that every pipeline of
-- the source has handled or discarded, with what quarantine holds of them and the ids of their messages. What no
-- criterion matched stays unless it was discarded. The version that a webhook brought goes with its record, unless another
-- comes at this moment: that one locks the version, and waits for the record next.
-- A discarded row of quarantine is locked, so that nobody asks for another try meanwhile. A record that changes meanwhile has
-- another xid when it is locked, and stays. Nothing that others have locked is waited for: they could wait for this transaction
-- next, which is a deadlock. A row of quarantine that stays for it goes with the rows whose record is gone.
-- Later ids were written later, except in a long transaction. So a page without an old row is the last one for this time,
-- unless it has rows of one transaction only: after a rebase all rows are of one.
WITH page AS MATERIALIZED (
    SELECT source, tenant, key, revision, xid, id, changed_at < %(before)s AS old,
           changed_at < %(before)s AND (tenant <> '' OR discarded_at IS NOT NULL) AS ours
    FROM {schema}.records
    WHERE source = %(source)s AND id > 0 AND (xid, id) > ((%(after)s::text[])[1]::xid8, (%(after)s::text[])[2]::bigint)
    ORDER BY xid, id
    LIMIT %(limit)s
), discarded AS MATERIALIZED (
    SELECT q.*
    FROM page p
    CROSS JOIN LATERAL (
        SELECT pipeline, tenant, external_id
        FROM {schema}.quarantine
        WHERE pipeline = ANY (%(readers)s::text[]) AND tenant = p.tenant AND external_id = p.key
          AND revision = p.revision AND discarded_at IS NOT NULL AND retry_at IS NULL
        FOR UPDATE SKIP LOCKED
    ) q
    WHERE p.ours
), held AS MATERIALIZED (
    SELECT p.xid, p.id
    FROM page p
    WHERE p.ours AND p.tenant <> '' AND (cardinality(%(readers)s::text[]) = 0 OR EXISTS (
        SELECT FROM unnest(%(readers)s::text[]) AS reader (pipeline)
        LEFT JOIN {schema}.pipelines s ON s.pipeline = reader.pipeline
        LEFT JOIN {schema}.sync_cursors c ON c.pipeline = reader.pipeline AND c.tenant = p.tenant
        LEFT JOIN {schema}.quarantine q
            ON q.pipeline = reader.pipeline AND q.tenant = p.tenant AND q.external_id = p.key AND q.revision = p.revision
        LEFT JOIN discarded d
            ON d.pipeline = reader.pipeline AND d.tenant = p.tenant AND d.external_id = p.key
        WHERE CASE
            WHEN q.external_id IS NOT NULL THEN d.external_id IS NULL
            ELSE {schema}.is_handled(p.xid, p.id, coalesce(c.snapshot, s.start), c.target, c.at_xid, c.at_id) IS NOT TRUE
        END
    ))
), done AS MATERIALIZED (
    SELECT p.* FROM page p WHERE p.ours AND (p.xid, p.id) NOT IN (SELECT h.xid, h.id FROM held h)
), free AS MATERIALIZED (
    SELECT r.source, r.tenant, r.key, r.xid, r.id
    FROM done d
    JOIN {schema}.records r
        ON r.source = d.source AND r.tenant = d.tenant AND r.key = d.key AND (r.xid, r.id) = (d.xid, d.id)
    WHERE NOT %(dry_run)s
    FOR UPDATE OF r SKIP LOCKED
), deleted AS (
    DELETE FROM {schema}.records r USING free d
    WHERE r.source = d.source AND r.tenant = d.tenant AND r.key = d.key AND (r.xid, r.id) = (d.xid, d.id)
    RETURNING r.source, r.tenant, r.key
), unsaid AS (
    DELETE FROM {schema}.messages m USING deleted d WHERE m.source = d.source AND m.key = d.key
), versions AS MATERIALIZED (
    SELECT v.source, v.tenant, v.key
    FROM deleted d
    JOIN {schema}.record_versions v ON v.source = d.source AND v.tenant = d.tenant AND v.key = d.key
    FOR UPDATE OF v SKIP LOCKED
), unversioned AS (
    DELETE FROM {schema}.record_versions v USING versions d
    WHERE v.source = d.source AND v.tenant = d.tenant AND v.key = d.key
), alone AS MATERIALIZED (
    SELECT q.pipeline, q.tenant, q.external_id
    FROM deleted d
    JOIN {schema}.quarantine q
        ON q.pipeline = ANY (%(readers)s::text[]) AND q.tenant = d.tenant AND q.external_id = d.key
    FOR UPDATE OF q SKIP LOCKED
), orphans AS (
    DELETE FROM {schema}.quarantine q USING alone d
    WHERE q.pipeline = d.pipeline AND q.tenant = d.tenant AND q.external_id = d.external_id
    RETURNING 1
)
SELECT (SELECT count(*) FROM deleted) + (SELECT count(*) FROM done WHERE %(dry_run)s) AS pruned,
       (SELECT count(*) FROM orphans) AS quarantine,
       count(*) FILTER (WHERE ours) AS old,
       (SELECT ARRAY[xid::text, id::text] FROM page ORDER BY xid DESC, id DESC LIMIT 1) AS last,
       count(*) = %(limit)s AND (bool_or(old) OR min(xid) = max(xid)) AS more
FROM page

-- name: rebase_cursors
-- Move every cursor past all existing rows, in ids of this cluster. The owner stays, so that an older token is still rejected.
-- `sweeps` grows, so that the advance of a batch that was read earlier is rejected. A search for a bad record counts records after
-- the cursor, so it starts over.
UPDATE {schema}.sync_cursors
SET snapshot = %(snapshot)s::pg_snapshot,
    looked = NULL,
    target = NULL,
    at_xid = NULL,
    at_id = NULL,
    sweeps = sweeps + 1,
    batch_limit = NULL,
    suspects = 0,
    attempts = 0,
    outages = 0,
    deaths = 0,
    suspect_revision = NULL,
    failing_since = NULL

-- name: rebase_begin
-- From now on the records and cursors hold transaction ids of this cluster, and the triggers let records be written. In this
-- transaction they leave ids as the rebase sets them.
WITH former AS (DELETE FROM {schema}.taskbridge_cluster)
INSERT INTO {schema}.taskbridge_cluster SELECT system_identifier FROM pg_control_system();
SELECT set_config('taskbridge.keep_ids', 'on', true)

-- name: rebase_lock
-- Before a rebase: until it ends no transaction can write records or move cursors, and earlier ones have committed. Reading is
-- possible.
LOCK TABLE {schema}.records, {schema}.sync_cursors, {schema}.pipelines, {schema}.quarantine, {schema}.taskbridge_cluster
    IN EXCLUSIVE MODE

-- name: rebase_pending
-- Records that are pending by the former cluster's ids go into quarantine, marked for a retry, because the cursors are about to
-- pass them. An existing row for the same revision stays; one of an earlier revision is overwritten. If a tenant has no cursor and
-- its pipeline began with everything, all of its records stay pending without this.
WITH quarantined AS (
    INSERT INTO {schema}.quarantine AS q (pipeline, tenant, external_id, revision, cause, reason, attempts, retry_at)
    SELECT s.pipeline, s.tenant, s.external_id, r.revision,
           'failed', 'pending when the database was rebased', 0, now()
    FROM {schema}.record_states s
    LEFT JOIN {schema}.pipelines p ON p.pipeline = s.pipeline
    JOIN {schema}.records r ON r.source = coalesce(p.source, s.pipeline) AND r.tenant = s.tenant AND r.key = s.external_id
    LEFT JOIN {schema}.sync_cursors c ON c.pipeline = s.pipeline AND c.tenant = s.tenant
    WHERE s.state = 'pending' AND (c.tenant IS NOT NULL OR coalesce(p.start::text, '1:1:') <> '1:1:')
    ON CONFLICT (pipeline, tenant, external_id) DO UPDATE
    SET revision = excluded.revision,
        cause = excluded.cause,
        reason = excluded.reason,
        attempts = excluded.attempts,
        quarantined_at = now(),
        failing_since = NULL,
        retry_at = excluded.retry_at,
        discarded_at = NULL
    WHERE q.revision <> excluded.revision
    RETURNING q.pipeline
)
SELECT pipeline, count(*) FROM quarantined GROUP BY pipeline ORDER BY pipeline

-- name: rebase_rows
-- Rows with a transaction id that this cluster has not finished get 3, the first id of any cluster, which is finished. They were
-- written by many transactions and now count as written by one, so their ids must differ: they are renumbered, in order. Revisions
-- stay; new ones are later.
UPDATE {schema}.records r
SET xid = '3', id = n.id
FROM (
    SELECT o.source, o.tenant, o.key, (SELECT {schema}.next_id('')) + row_number() OVER (ORDER BY o.xid, o.id) AS id
    FROM {schema}.records o
    WHERE o.xid >= pg_snapshot_xmin(%(snapshot)s::pg_snapshot)
) n
WHERE r.source = n.source AND r.tenant = n.tenant AND r.key = n.key

-- name: rebase_rest
-- The snapshots of poller and reconciler, and the positions in the run history, are ids of the former cluster: both passes
-- begin anew.
DELETE FROM {schema}.tails;
UPDATE {schema}.runs SET snapshot = NULL, target = NULL, at_xid = NULL, at_id = NULL WHERE snapshot IS NOT NULL

-- name: rebase_starts
-- Pipelines that did not begin with everything begin behind all rows that there are: what is pending is in quarantine by now.
-- Nobody knows any more which rows were skipped, which the snapshot says by the xmin 1 (see `tenant_counts`). It sees the
-- same as with its own xmin, since below that no transaction is on.
UPDATE {schema}.pipelines
SET start = regexp_replace(%(snapshot)s::pg_snapshot::text, '^[0-9]+', '1')::pg_snapshot
WHERE start::text <> '1:1:'

-- name: other_sessions
-- Processes of TaskBridge that are connected to this database, other than this one: workers, producers, commands.
SELECT pid
FROM pg_stat_activity
WHERE datname = current_database() AND (application_name = 'taskbridge' OR application_name LIKE 'taskbridge %%')
  AND pid <> pg_backend_pid()
ORDER BY pid

-- name: present_snapshot
-- The current snapshot: what is committed, and what is in progress.
SELECT pg_current_snapshot()::text AS snapshot

-- name: in_its_cluster
-- Whether the transaction ids of records and cursors are those of this cluster: the stored identifier is its own, and no
-- source's newest record, and none of a thousand cursors, has seen a transaction that this cluster has not begun (as after
-- a restore of some tables only).
WITH RECURSIVE newest AS (
    (SELECT source, xid FROM {schema}.records WHERE id > 0 ORDER BY source DESC, xid DESC LIMIT 1)
    UNION ALL
    SELECT r.source, r.xid
    FROM newest n
    CROSS JOIN LATERAL (
        SELECT source, xid FROM {schema}.records WHERE id > 0 AND source < n.source ORDER BY source DESC, xid DESC LIMIT 1
    ) r
)
SELECT coalesce(
           (
               SELECT bool_and(c.system_identifier = s.system_identifier)
               FROM {schema}.taskbridge_cluster c, pg_control_system() s
           ),
           false
       )
       AND NOT EXISTS (SELECT FROM newest WHERE xid >= pg_snapshot_xmax(pg_current_snapshot()))
       AND NOT EXISTS (
           SELECT FROM (SELECT snapshot, target FROM {schema}.sync_cursors LIMIT 1000) c
           WHERE greatest(pg_snapshot_xmax(c.snapshot), pg_snapshot_xmax(c.target))
               > pg_snapshot_xmax(pg_current_snapshot())
       )

-- name: register_lock
-- Before a source gets another reader: wait for batches whose writes were muted and that are about to commit; later ones see the
-- new reader.
SELECT pg_advisory_xact_lock({readers_key})

-- name: register_pipeline
-- When a pipeline is seen for the first time: its source, and the snapshot at which its cursors begin; null: now. If it is already
-- registered, nothing changes. It is a separate statement after `register_lock`, so that `now` is after what that has waited for.
INSERT INTO {schema}.pipelines (pipeline, source, start)
VALUES (%(pipeline)s, %(source)s, coalesce(%(start)s::pg_snapshot, pg_current_snapshot()))
ON CONFLICT DO NOTHING

-- name: known_source
-- The source of a pipeline, if it is registered.
SELECT source FROM {schema}.pipelines WHERE pipeline = %(pipeline)s

-- name: pipelines
-- The registered pipelines and their sources.
SELECT pipeline, source FROM {schema}.pipelines

-- name: sources
-- The sources that have records, from one to the next through the index.
WITH RECURSIVE sources AS (
    (SELECT source FROM {schema}.records ORDER BY source LIMIT 1)
    UNION ALL
    SELECT (SELECT r.source FROM {schema}.records r WHERE r.source > s.source ORDER BY r.source LIMIT 1)
    FROM sources s
    WHERE s.source IS NOT NULL
)
SELECT source FROM sources WHERE source IS NOT NULL

-- name: unread_sources
-- Sources that have records of tenants, or are adopted tables, without a registered reader, and not in `read`.
SELECT s.source
FROM ({sources} UNION SELECT source FROM {schema}.adopted WHERE ended_at IS NULL) s
WHERE s.source <> ALL (%(read)s::text[])
  AND NOT EXISTS (SELECT FROM {schema}.pipelines p WHERE p.source = s.source)
  AND (
      EXISTS (SELECT FROM {schema}.records r WHERE r.source = s.source AND r.tenant <> '')
      OR EXISTS (SELECT FROM {schema}.adopted a WHERE a.source = s.source AND a.ended_at IS NULL)
  )
ORDER BY s.source

-- name: snapshot_since
-- A snapshot that sees nothing of what was written since a time, and nearly all that was written before. `is_rebased`: the
-- first transaction since then has also rows that are an hour older, which only a rebase makes.
SELECT format('%%s:%%s:', x.xid, x.xid) AS snapshot,
       EXISTS (
           SELECT FROM {schema}.records r
           WHERE r.source = %(source)s AND r.id > 0 AND r.xid = x.xid AND r.changed_at < %(since)s - interval '1 hour'
       ) AS is_rebased
FROM (
    SELECT least((
        SELECT r.xid FROM {schema}.records r
        WHERE r.source = %(source)s AND r.id > 0 AND r.changed_at >= %(since)s
        ORDER BY r.xid LIMIT 1
    ), pg_snapshot_xmin(pg_current_snapshot())) AS xid
) x

-- name: undeclared_pipelines
-- Pipelines with tenants that are not among `declared`.
SELECT p.pipeline
FROM {schema}.pipelines p
WHERE p.pipeline <> ALL (%(declared)s) AND EXISTS (SELECT FROM {schema}.sync_cursors WHERE pipeline = p.pipeline)
ORDER BY p.pipeline

-- name: forget
-- Delete the data of a removed pipeline; its records stay, since others may read them. Cursors are deleted before quarantine, which
-- is the order in which a run in progress locks them, so that there is no deadlock.
WITH pipeline AS (
    DELETE FROM {schema}.pipelines WHERE pipeline = %(pipeline)s RETURNING 1
), cursors AS (
    DELETE FROM {schema}.sync_cursors WHERE pipeline = %(pipeline)s RETURNING 1
), quarantined AS (
    DELETE FROM {schema}.quarantine
    WHERE pipeline = %(pipeline)s AND (SELECT count(*) FROM cursors) >= 0 RETURNING 1
), tails AS (
    DELETE FROM {schema}.tails WHERE pipeline = %(pipeline)s
), runs AS (
    DELETE FROM {schema}.runs WHERE pipeline = %(pipeline)s
), minutes AS (
    DELETE FROM {schema}.run_minutes WHERE pipeline = %(pipeline)s
), pauses AS (
    DELETE FROM {schema}.pauses WHERE pipeline = %(pipeline)s
)
SELECT (SELECT count(*) FROM pipeline) AS pipelines, (SELECT count(*) FROM cursors) AS cursors,
       (SELECT count(*) FROM quarantined) AS quarantined

-- name: troubled
-- Tenants whose last run failed, those with the most failures first, and those with the most records in quarantine: up to
-- `limit` of each. At most `size` cursors and rows of quarantine are read.
(
    SELECT tenant
    FROM (
        SELECT tenant, failures FROM {schema}.sync_cursors WHERE pipeline = %(pipeline)s AND failures > 0 LIMIT %(size)s
    ) c
    ORDER BY failures DESC, tenant
    LIMIT %(limit)s
)
UNION
(
    SELECT tenant
    FROM (
        SELECT tenant FROM {schema}.quarantine
        WHERE pipeline = %(pipeline)s AND discarded_at IS NULL AND retry_at IS NULL
        LIMIT %(size)s
    ) q
    GROUP BY tenant
    ORDER BY count(*) DESC, tenant
    LIMIT %(limit)s
)
