-- Put every cursor behind all rows that there are, in ids of this cluster. The owner stays, so that an older token is refused
-- as before. `sweeps` grows, so that the advance of a batch that was read before is refused. A search for a bad record counts
-- records after the cursor, so it begins again.
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
