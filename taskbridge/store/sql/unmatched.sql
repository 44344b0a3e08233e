-- Records that no criterion matched, oldest first, after the one with id `after`; with a reason, those that have it.
SELECT id, message_id, reason, payload, recorded_at
FROM records
WHERE pipeline = %(pipeline)s AND tenant IS NULL AND discarded_at IS NULL AND id > %(after)s
    AND (%(reason)s::text IS NULL OR reason = %(reason)s)
ORDER BY id
LIMIT %(limit)s
