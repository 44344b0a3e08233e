-- How many unmatched records each source has, whether or not anybody reads it; of all together so many are counted.
SELECT source, count(*)
FROM (SELECT source FROM {schema}.records WHERE tenant = '' AND discarded_at IS NULL LIMIT 100000) counted
GROUP BY source
ORDER BY source
