-- What a pipeline reads, if it was seen before.
SELECT source FROM {schema}.pipelines WHERE pipeline = %(pipeline)s
