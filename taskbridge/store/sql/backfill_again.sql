-- A part of the writing of a backfill: the row has a record that is older than what triggers may have missed.
DO UPDATE
SET document = NULL, deleted = excluded.deleted, id = excluded.id, revision = greatest(excluded.revision, r.revision + 1),
    xid = excluded.xid, reason = excluded.reason, discarded_at = excluded.discarded_at
WHERE r.xid <= '{again_below}'::xid8
