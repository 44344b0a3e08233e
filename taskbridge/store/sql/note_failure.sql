-- A run that died could write no row itself. The first 16 digits of its token, `dead`, tell when it was made.
-- The run's row of the history says that it failed. It is a statement of its own: the failure is kept in any case.
-- A run that moved the cursor before it died has a row with its events already.
INSERT INTO {schema}.runs AS r
    (pipeline, tenant, token, began_at, ended_at, reason, worker, events, burst_run, records, rejected, outcome, error,
     began_sweeps, sweeps, snapshot, target, at_xid, at_id)
SELECT c.pipeline, c.tenant, coalesce(nullif(%(dead)s, ''), c.owner),
       least(to_timestamp(left(nullif(%(dead)s, ''), 16)::float8 / 1000000), c.last_run_at), clock_timestamp(), %(reason)s,
       %(worker)s, CASE WHEN d.noted THEN 0 ELSE %(events)s END, CASE WHEN d.noted THEN 0 ELSE %(burst_run)s END, 0, 0,
       'failed', left(%(error)s, 1000), c.sweeps, c.sweeps, c.snapshot, c.target, c.at_xid, c.at_id
FROM {schema}.sync_cursors c
CROSS JOIN LATERAL (
    SELECT EXISTS (
        SELECT FROM {schema}.runs d
        WHERE d.pipeline = c.pipeline AND d.tenant = c.tenant AND d.token = nullif(%(dead)s, '')
    ) AS noted
) d
WHERE c.pipeline = %(pipeline)s AND c.tenant = %(tenant)s AND c.owner = %(token)s
ON CONFLICT (pipeline, tenant, token, began_at) DO UPDATE
SET ended_at = excluded.ended_at, outcome = excluded.outcome, error = excluded.error
