-- Partitions of the run history: the next days', and none that is too old.
SELECT {schema}.keep_runs(%(days)s)
