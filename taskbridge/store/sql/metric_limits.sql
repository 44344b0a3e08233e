-- Before a look or the figures of a scrape: none takes more than one CPU of the server. Each is planned for its values: a plan for
-- any time would read all of a day's runs, where those of the last seconds are wanted.
SELECT set_config('max_parallel_workers_per_gather', '0', true), set_config('jit', 'off', true),
       set_config('plan_cache_mode', 'force_custom_plan', true)
