-- Records of a pipeline that lie in quarantine. At most `size` rows are looked at. A row whose record has changed since
-- means nothing.
SELECT count(*)
FROM (SELECT * FROM {schema}.quarantine WHERE pipeline = %(pipeline)s LIMIT %(size)s) c
JOIN {schema}.records i
    ON i.source = %(source)s AND i.tenant = c.tenant AND i.key = c.external_id AND i.revision = c.revision
WHERE c.discarded_at IS NULL AND c.retry_at IS NULL
