-- Before a round over the log. Statistics are old whenever much is new, and the planner knows nothing of snapshots; each
-- part is an ordered read of one index. What holds a round up must not hold up those of other pipelines. And no round waits
-- for the disk: a T or B that a crash loses leaves an older one, and whatever it saw was flushed before it.
SELECT set_config('enable_seqscan', 'off', true),
       set_config('enable_bitmapscan', 'off', true),
       set_config('enable_hashjoin', 'off', true),
       set_config('max_parallel_workers_per_gather', '0', true),
       set_config('jit', 'off', true),
       set_config('synchronous_commit', 'off', true),
       set_config('lock_timeout', %(lock_timeout)s, true),
       set_config('statement_timeout', %(statement_timeout)s, true)
