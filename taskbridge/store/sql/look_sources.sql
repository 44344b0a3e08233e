-- The sources of the pipelines that were seen.
SELECT DISTINCT source FROM {schema}.pipelines
