-- Give unmatched records up: those with these message ids, or all; with a reason, those that have it. They stay until they
-- are pruned, so that a message that comes again is known.
UPDATE {schema}.records
SET discarded_at = now()
WHERE source = %(source)s AND tenant = '' AND discarded_at IS NULL
  AND (%(message_ids)s::text[] IS NULL OR key = ANY (%(message_ids)s))
  AND (%(reason)s::text IS NULL OR reason = %(reason)s)
RETURNING key
