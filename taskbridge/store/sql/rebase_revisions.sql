-- The triggers leave ids as the rebase sets them, in this transaction alone. And what was written after the dump was taken
-- had revisions that the sequence would give again: it goes on above all of them, at the microseconds of the Unix epoch.
SELECT set_config('taskbridge.keep_ids', 'on', true),
       setval(
           '{schema}.revisions',
           greatest(nextval('{schema}.revisions'), (extract(epoch FROM clock_timestamp()) * 1000000)::bigint)
       )
