-- As `adopted_changes.sql`, with the reason of a record that is unmatched.
INSERT INTO {schema}.records AS r (source, tenant, key, deleted, reason, discarded_at, id, revision, xid)
SELECT {source}, s.tenant, s.key, s.gone, s.reason, CASE WHEN s.reason IS NOT NULL AND s.gone THEN now() END,
       s.id, s.revision, pg_current_xact_id()
FROM (
{changes}
) s
ON CONFLICT (source, tenant, key) {again}
