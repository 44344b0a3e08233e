-- A part of other queries: the settings under which a batch is read. The planner knows neither how many rows lie after a cursor
-- nor that the two visibility tests leave few of them out; where its statistics are old it would read and sort all of a
-- tenant's rows for each batch.
-- Without parallel workers the parts of a batch come in the order in which they are written.
-- Without sorts no batch is read by the primary key, and so all records of its tenant.
-- Row-level security would hide rows of an adopted table, and a row that is not there counts as deleted. With it off, a query
-- that it would apply to fails.
-- Before Postgres 18 a sort that cannot be left out makes a plan so dear that its compilation would take a second (`jit`).
set_config('row_security', 'off', true),
set_config('enable_seqscan', 'off', true),
set_config('enable_bitmapscan', 'off', true),
set_config('enable_sort', 'off', true),
set_config('max_parallel_workers_per_gather', '0', true),
set_config('jit', 'off', true)
