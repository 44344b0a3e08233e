-- How many unmatched records each source has, whether or not a pipeline reads it; at most `size` are counted in all.
SELECT source, count(*)
FROM (SELECT source FROM {schema}.records WHERE tenant = '' AND discarded_at IS NULL LIMIT %(size)s) counted
GROUP BY source
ORDER BY source
