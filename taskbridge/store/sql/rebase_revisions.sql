-- In this transaction the triggers leave ids as the rebase sets them. And the sequence goes on at the microseconds of the Unix
-- epoch: what was written after the dump was taken had revisions that it would give again.
SELECT set_config('taskbridge.keep_ids', 'on', true),
       setval(
           '{schema}.revisions',
           greatest(nextval('{schema}.revisions'), (extract(epoch FROM clock_timestamp()) * 1000000)::bigint)
       )
