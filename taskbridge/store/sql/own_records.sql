-- The records of a source that this transaction has written beyond those that `mark` says, and those that `left` names, as for a
-- test in which nothing commits: each tenant's in their order, the tenant first that was written first.
SELECT tenant, key, revision, id, so_far
FROM
  {schema}.records,
  (SELECT coalesce(nullif(current_setting(%(mark)s, true), ''), '0')::bigint AS so_far) AS earlier
WHERE source = %(source)s
  AND id > 0
  AND tenant <> ''
  AND xid IN (pg_current_xact_id(), '1') -- see `own_delivered.sql`
  AND (
    id > so_far
    OR revision = ANY (string_to_array(current_setting(%(left)s, true), ',')::bigint[])
  )
ORDER BY min(id) OVER (PARTITION BY tenant), id
