-- The tails hold ids of the former cluster, and what went through quarantine is behind them: each begins anew.
DELETE FROM {schema}.tails
