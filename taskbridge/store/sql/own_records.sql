-- The records of a source that this transaction has written beyond those that `mark` says, as for a test in which nothing
-- commits: each tenant's in their order, the tenant first that was written first.
SELECT tenant, key, revision
FROM {schema}.records
WHERE source = %(source)s
  AND id > 0
  AND tenant <> ''
  AND xid IN (pg_current_xact_id(), '1') -- see `own_delivered.sql`
  AND revision > coalesce(nullif(current_setting(%(mark)s, true), ''), '0')::bigint
ORDER BY min(revision) OVER (PARTITION BY tenant), revision
