-- When the history begins: the first minute that has sums.
SELECT min(minute) FROM {schema}.run_minutes WHERE pipeline = %(pipeline)s
