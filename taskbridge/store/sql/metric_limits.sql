-- Before the figures of a scrape: none takes more than one CPU of the server.
SELECT set_config('max_parallel_workers_per_gather', '0', true), set_config('jit', 'off', true)
