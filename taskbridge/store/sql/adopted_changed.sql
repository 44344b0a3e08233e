-- A part of the trigger function of an adopted table: rows that were updated. Old and new ones are brought together by tenant
-- and key; where one is alone, the row came to this tenant or key, or left it. Images are compared, so that any type will do.
SELECT coalesce(n.tenant, o.tenant) AS tenant, coalesce(n.key, o.key) AS key, n.key IS NULL AS gone
FROM (
    SELECT {new_tenant} AS tenant, {new_key} AS key, {new_watched} AS watched
    FROM {new} n
    WHERE {new_counts}
) n
FULL JOIN (
    SELECT {old_tenant} AS tenant, {old_key} AS key, {old_watched} AS watched
    FROM {old} o
    WHERE {old_counts}
) o ON n.tenant = o.tenant AND n.key = o.key
WHERE o.key IS NULL
   OR (n.key IS NULL OR n.watched OPERATOR(pg_catalog.*<>) o.watched)
      AND {muted} IS DISTINCT FROM '{schema}:' || {source} || ':' || o.tenant
