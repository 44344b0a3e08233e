-- A record that no criterion matched has been matched after all, or has another reason. The trigger renews its xid, so
-- the next sweep of its tenant takes it. No row: somebody else matched it meanwhile, or gave it up.
UPDATE {schema}.records
SET source = %(source)s, tenant = %(tenant)s, delay_ms = %(delay_ms)s, criterion = %(criterion)s, reason = %(reason)s
WHERE source = %(under)s AND tenant = '' AND discarded_at IS NULL AND key = %(key)s
RETURNING id
