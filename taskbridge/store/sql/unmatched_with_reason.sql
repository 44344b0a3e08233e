-- Of these sources, those that have unmatched records with this reason, and the id of the oldest one.
SELECT name, oldest
FROM unnest(%(sources)s::text[]) AS name,
    LATERAL (
        SELECT id FROM {schema}.records
        WHERE source = name AND tenant = '' AND discarded_at IS NULL AND reason = %(reason)s
        ORDER BY id LIMIT 1
    ) AS found (oldest)
