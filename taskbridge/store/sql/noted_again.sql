-- A part of `noted.sql`: the run may have a row, of an earlier batch, or since it failed. Else nothing asks for one, for that
-- costs half as much again as the row.
ON CONFLICT (pipeline, tenant, token, began_at) DO UPDATE
SET ended_at = excluded.ended_at,
    events = r.events + excluded.events,
    records = r.records + excluded.records,
    rejected = r.rejected + excluded.rejected,
    first_event_ms = coalesce(r.first_event_ms, excluded.first_event_ms),
    sweeps = excluded.sweeps,
    snapshot = excluded.snapshot,
    target = excluded.target,
    at_xid = excluded.at_xid,
    at_id = excluded.at_id
