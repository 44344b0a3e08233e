-- Records of a pipeline that lie in quarantine. At most `size` rows are looked at.
SELECT count(*)
FROM (SELECT * FROM {schema}.quarantine WHERE pipeline = %(pipeline)s LIMIT %(size)s) q
{its_record}
WHERE q.discarded_at IS NULL AND q.retry_at IS NULL
