-- How many tenants each pipeline has that is not among `declared`, counted up to `most`.
SELECT p.pipeline, c.tenants
FROM {schema}.pipelines p
CROSS JOIN LATERAL (
    SELECT count(*) AS tenants FROM (SELECT FROM {schema}.sync_cursors WHERE pipeline = p.pipeline LIMIT %(most)s) counted
) c
WHERE p.pipeline <> ALL (%(declared)s) AND c.tenants > 0
ORDER BY p.pipeline
