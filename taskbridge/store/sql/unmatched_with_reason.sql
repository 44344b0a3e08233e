-- Of these pipelines, those that have unmatched records with this reason, and the id of the oldest one.
SELECT name, oldest
FROM unnest(%(pipelines)s::text[]) AS name,
    LATERAL (
        SELECT id FROM records
        WHERE pipeline = name AND tenant IS NULL AND discarded_at IS NULL AND reason = %(reason)s
        ORDER BY id LIMIT 1
    ) AS found (oldest)
