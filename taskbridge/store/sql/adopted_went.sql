-- A part of the trigger function of an adopted table: rows that were deleted, but not those that their tenant's own batch
-- deletes.
SELECT {old_tenant} AS tenant, {old_key} AS key, true AS gone
FROM {old} o
WHERE {old_counts} AND {muted} IS DISTINCT FROM '{schema}:' || {source} || ':' || {old_tenant}
