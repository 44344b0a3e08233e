-- The tails hold ids of the former cluster: each begins anew.
DELETE FROM {schema}.tails
