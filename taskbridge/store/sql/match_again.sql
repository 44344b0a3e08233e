-- A record that no criterion matched has been matched after all, or has another reason. Its xid is renewed, so the next
-- sweep of its tenant takes it. No row: somebody else matched it meanwhile.
UPDATE records
SET tenant = %(tenant)s, delay_ms = %(delay_ms)s, criterion = %(criterion)s, reason = %(reason)s
WHERE id = %(id)s AND tenant IS NULL AND discarded_at IS NULL
RETURNING id
