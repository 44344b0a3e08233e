-- A part of the trigger function of an adopted table: a column that it names is gone, or another has its name, so nothing says
-- what the changed rows are. An unmatched record says so until the table is adopted again (see `adopt_seen.sql`). There is one
-- for each transaction that sees none: none waits for another.
INSERT INTO {schema}.records (source, tenant, key, reason, id, revision, xid)
SELECT {source}, '', 'columns changed, ' || pg_current_xact_id(),
       'columns of the table are called otherwise since it was adopted, so changes were missed: taskbridge doctor says what to do',
       {schema}.next_id({source}), {schema}.next_revision(NULL), pg_current_xact_id()
WHERE NOT EXISTS (
    SELECT FROM {schema}.records r
    WHERE r.source = {source} AND r.tenant = '' AND r.key > 'columns changed, ' AND r.key < 'columns changed-' AND r.discarded_at IS NULL
)
ON CONFLICT DO NOTHING
