-- Records of a pipeline that lie in quarantine, and those of which somebody asked for another try, which are pending. At
-- most `limit` rows are looked at. A row whose record has changed since means nothing.
SELECT count(*) FILTER (WHERE q.retry_at IS NULL) AS quarantined,
       count(*) FILTER (WHERE q.retry_at IS NOT NULL) AS retried
FROM (
    SELECT c.retry_at
    FROM quarantine c
    JOIN {rows} i ON {of_pipeline} i.tenant = c.tenant AND i.external_id = c.external_id AND i.revision = c.revision
    WHERE c.pipeline = %(pipeline)s AND c.discarded_at IS NULL
    LIMIT %(limit)s
) q
