-- How many records no criterion matched.
SELECT count(*) FROM records WHERE pipeline = %(pipeline)s AND tenant IS NULL AND discarded_at IS NULL
