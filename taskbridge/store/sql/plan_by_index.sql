-- Before a batch is read. The planner knows neither how many rows lie after a cursor nor that the two visibility tests
-- leave few of them out; where its statistics are old it would read and sort all of a tenant's rows for each batch.
-- Without parallel workers the parts of a batch come in the order in which they are written.
SELECT set_config('enable_seqscan', 'off', true),
       set_config('enable_bitmapscan', 'off', true),
       set_config('max_parallel_workers_per_gather', '0', true)
