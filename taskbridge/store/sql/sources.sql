-- The sources that have records, from one to the next through the index.
WITH RECURSIVE sources AS (
    (SELECT source FROM {schema}.records ORDER BY source LIMIT 1)
    UNION ALL
    SELECT (SELECT r.source FROM {schema}.records r WHERE r.source > s.source ORDER BY r.source LIMIT 1)
    FROM sources s
    WHERE s.source IS NOT NULL
)
SELECT source FROM sources WHERE source IS NOT NULL
