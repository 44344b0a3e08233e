-- Before a step of prune, and before backlogs are counted. Its rows are few and each is found by its key; for a table of some ten thousand rows the planner
-- would still rather read it whole, or from its beginning, and join that.
SELECT set_config('enable_seqscan', 'off', true),
       set_config('enable_bitmapscan', 'off', true),
       set_config('enable_hashjoin', 'off', true),
       set_config('enable_mergejoin', 'off', true)
