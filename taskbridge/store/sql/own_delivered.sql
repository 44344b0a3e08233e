-- What a test was given counts as written by an earlier transaction from then on: else a trigger takes a later change of the row
-- for one of a record that nobody has read. Only the owner keeps ids; his revisions stay as they are.
UPDATE {schema}.records SET xid = '1'
WHERE source = %(source)s AND xid = pg_current_xact_id() AND {schema}.owns_records()
