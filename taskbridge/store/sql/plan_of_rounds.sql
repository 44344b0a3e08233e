-- Before a page of a round. Statistics are old whenever much is new, and the planner knows nothing of snapshots; each part is
-- an ordered read of one index. A round that waits must not hold up those of other pipelines, so its time-outs are short. And
-- no round waits for the disk: after a crash that loses a T or B there is an older one. Commits that are lost were seen by none
-- that is left, for what a page stores comes after them in the log.
SELECT set_config('enable_seqscan', 'off', true),
       set_config('enable_bitmapscan', 'off', true),
       set_config('enable_hashjoin', 'off', true),
       set_config('max_parallel_workers_per_gather', '0', true),
       set_config('jit', 'off', true),
       set_config('synchronous_commit', 'off', true),
       set_config('lock_timeout', %(lock_timeout)s, true),
       set_config('statement_timeout', %(statement_timeout)s, true)
