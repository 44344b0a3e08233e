-- How many records of a source no criterion matched.
SELECT count(*) FROM {schema}.records WHERE source = %(source)s AND tenant = '' AND discarded_at IS NULL
