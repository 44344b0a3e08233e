-- The last actions, the last one first, before a row's number.
SELECT id, at, who, action, pipeline, tenant, key, detail FROM {schema}.audit
WHERE %(before)s::bigint IS NULL OR id < %(before)s
ORDER BY id DESC
LIMIT %(limit)s
