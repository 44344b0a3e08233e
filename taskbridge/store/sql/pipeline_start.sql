-- A part of other queries: the snapshot at which a pipeline's cursors begin. `1:1:` sees no transaction: with everything.
coalesce((SELECT start FROM {schema}.pipelines WHERE pipeline = %(pipeline)s), '1:1:')
