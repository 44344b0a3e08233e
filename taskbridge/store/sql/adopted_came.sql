-- A part of the trigger function of an adopted table: rows that are new. These are never muted: what a batch's own
-- transaction adds is work that nobody has done.
SELECT {new_tenant} AS tenant, {new_key} AS key, false AS gone
FROM {new} n
WHERE {new_counts}
