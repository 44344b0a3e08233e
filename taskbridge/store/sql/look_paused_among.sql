-- Which of some tenants are paused; one without a name is the pipeline itself.
SELECT tenant FROM {schema}.pauses WHERE pipeline = %(pipeline)s AND tenant = ANY (%(tenants)s::text[] || ''::text)
