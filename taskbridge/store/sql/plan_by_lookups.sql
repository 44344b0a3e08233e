-- Before a step of prune, and before backlogs are counted: the rows are few and each is found by its key. The planner would
-- read a table of some ten thousand rows whole, or from its beginning, and join that. `batch_settings.sql` says why without `jit`.
SELECT set_config('enable_seqscan', 'off', true),
       set_config('enable_bitmapscan', 'off', true),
       set_config('enable_hashjoin', 'off', true),
       set_config('enable_mergejoin', 'off', true),
       set_config('jit', 'off', true)
