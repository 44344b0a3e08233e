-- Pipelines that did not begin with everything begin behind all rows that there are: what is pending is in quarantine by now.
-- Nobody knows any more which rows were skipped, which the snapshot says by the xmin 1 (see tenant_counts.sql). It sees the
-- same as with its own xmin, since below that no transaction is on.
UPDATE {schema}.pipelines
SET start = regexp_replace(%(snapshot)s::pg_snapshot::text, '^[0-9]+', '1')::pg_snapshot
WHERE start::text <> '1:1:'
