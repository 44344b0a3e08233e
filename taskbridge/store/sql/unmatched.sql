-- Records that no criterion matched, oldest first, after the one with the id and key `after`; with a reason, those that have it; without
-- `thin`, no records of adopted tables.
SELECT id, key, reason, document, recorded_at
FROM {schema}.records
WHERE source = %(source)s AND tenant = '' AND discarded_at IS NULL AND (id, key) > (%(after)s, %(after_key)s)
    AND (%(reason)s::text IS NULL OR reason = %(reason)s)
    AND (%(thin)s OR document IS NOT NULL)
ORDER BY id, key
LIMIT %(limit)s
