-- A part of the trigger function of an adopted table: the row has a record already. Where the same transaction wrote that,
-- nobody can have read it, so it stays as it is.
DO UPDATE
SET document = NULL, deleted = excluded.deleted, id = excluded.id,
    revision = greatest(excluded.revision, r.revision + 1), xid = excluded.xid, changed_at = now(), reason = excluded.reason, discarded_at = excluded.discarded_at
WHERE r.deleted <> excluded.deleted OR r.document IS NOT NULL OR r.xid <> pg_current_xact_id()
