-- The message ids of the unmatched records, or which of these have one; with a reason, those that have it. What says
-- that an adopted table's changes were missed stays until that is adopted again: nothing else keeps it in mind.
SELECT key FROM {schema}.records
WHERE source = %(source)s AND tenant = '' AND discarded_at IS NULL
  AND (%(message_ids)s::text[] IS NULL OR key = ANY (%(message_ids)s))
  AND (%(reason)s::text IS NULL OR reason = %(reason)s)
  AND NOT (
      key > 'columns changed, ' AND key < 'columns changed-'
      AND EXISTS (SELECT FROM {schema}.adopted a WHERE a.source = %(source)s AND a.ended_at IS NULL)
  )
ORDER BY key
