-- The pipelines that were seen, and what each reads.
SELECT pipeline, source FROM {schema}.pipelines
