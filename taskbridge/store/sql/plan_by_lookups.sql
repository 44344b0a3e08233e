-- Before a step of prune, after plan_by_index. Its rows are few and each is found by its key; by its statistics the planner
-- may still prefer to read a table whole and join it.
SELECT set_config('enable_hashjoin', 'off', true),
       set_config('enable_mergejoin', 'off', true)
