-- How many seconds ago the tails and bases of pipelines were stored last, by whichever worker.
SELECT pipeline, kind, greatest(0, extract(epoch FROM clock_timestamp() - stored_at))::float8 AS seconds
FROM {schema}.tails
WHERE pipeline = ANY (%(pipelines)s::text[])
