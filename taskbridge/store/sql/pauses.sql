-- What is paused in a pipeline; the row without a tenant is the pipeline's own.
SELECT nullif(tenant, '') AS tenant, reason, paused_at, paused_by FROM {schema}.pauses WHERE pipeline = %(pipeline)s
