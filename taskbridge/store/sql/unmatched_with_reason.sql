-- Of these sources, those that have unmatched records with this reason.
SELECT name
FROM unnest(%(sources)s::text[]) AS name
WHERE EXISTS (
    SELECT FROM {schema}.records
    WHERE source = name AND tenant = '' AND discarded_at IS NULL AND reason = %(reason)s
)
