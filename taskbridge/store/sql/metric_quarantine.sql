-- Records of a pipeline that lie in quarantine, up to `size`.
SELECT count(*)
FROM (
    SELECT FROM {schema}.quarantine q
    {its_record}
    WHERE q.pipeline = %(pipeline)s AND q.discarded_at IS NULL AND q.retry_at IS NULL
    LIMIT %(size)s
) counted
