-- The unmatched records with these message ids, or all; with a reason, those that have it.
SELECT id FROM {schema}.records
WHERE source = %(source)s AND tenant = '' AND discarded_at IS NULL
  AND (%(message_ids)s::text[] IS NULL OR key = ANY (%(message_ids)s))
  AND (%(reason)s::text IS NULL OR reason = %(reason)s)
ORDER BY id
