-- Records that no criterion matched, oldest first, after the one with id `after`.
SELECT id, message_id, reason, payload, recorded_at
FROM records
WHERE pipeline = %(pipeline)s AND tenant IS NULL AND id > %(after)s
ORDER BY id
LIMIT %(limit)s
