-- How many unmatched records each source has, whether or not anybody reads it.
SELECT source, count(*) FROM {schema}.records WHERE tenant = '' AND discarded_at IS NULL GROUP BY source ORDER BY source
