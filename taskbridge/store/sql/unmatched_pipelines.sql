-- How many unmatched records each pipeline has, whether or not anybody declares it.
SELECT pipeline, count(*) FROM records WHERE tenant IS NULL AND discarded_at IS NULL GROUP BY pipeline ORDER BY pipeline
