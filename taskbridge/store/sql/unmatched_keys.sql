-- The message ids of the unmatched records, or which of these have one; with a reason, those that have it.
SELECT key FROM {schema}.records
WHERE source = %(source)s AND tenant = '' AND discarded_at IS NULL
  AND (%(message_ids)s::text[] IS NULL OR key = ANY (%(message_ids)s))
  AND (%(reason)s::text IS NULL OR reason = %(reason)s)
ORDER BY key
