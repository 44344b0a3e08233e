-- Of these pipelines, those that have unmatched records with this reason.
SELECT name
FROM unnest(%(pipelines)s::text[]) AS name
WHERE EXISTS (SELECT FROM records WHERE pipeline = name AND tenant IS NULL AND discarded_at IS NULL AND reason = %(reason)s)
