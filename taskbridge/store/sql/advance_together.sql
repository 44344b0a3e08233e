-- The batches of several runs were handled: move their cursors past them; see `moves_cursor.sql`. Each value is an array.
WITH m AS (SELECT * FROM unnest(
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
    %(suspect_revision)s::bigint[],
    %(reason)s::text[],
    %(worker)s::text[],
    %(burst_run)s::integer[],
    %(rejected)s::integer[]
) AS m (
    pipeline, tenant, token, sweeps, target, finished, at_xid, at_id, records, first_event_ms, first_event_bucket,
    batch_limit, suspects, attempts, outages, deaths, suspect_revision, reason, worker, burst_run, rejected
)),
{moves_cursor}
SELECT asked, pipeline, tenant FROM moved
