-- Give unmatched records up: those with these message ids, or all; with a reason, those that have it. They stay until they
-- are pruned, so that a message that comes again is known.
UPDATE records
SET discarded_at = now()
WHERE pipeline = %(pipeline)s AND tenant IS NULL AND discarded_at IS NULL
  AND (%(message_ids)s::text[] IS NULL OR message_id = ANY (%(message_ids)s))
  AND (%(reason)s::text IS NULL OR reason = %(reason)s)
RETURNING message_id
