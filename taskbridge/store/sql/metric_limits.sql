-- Before the figures of a scrape: one that takes too long is given up, and none takes more than one CPU of the server.
SELECT set_config('statement_timeout', %(timeout)s, true),
       set_config('max_parallel_workers_per_gather', '0', true),
       set_config('jit', 'off', true)
