-- The sources that are adopted tables.
SELECT source FROM {schema}.adopted WHERE ended_at IS NULL
