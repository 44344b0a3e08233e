-- The last minute of each pipeline that has sums, or of one pipeline. Null: it has none.
SELECT p.pipeline, (SELECT max(m.minute) FROM {schema}.run_minutes m WHERE m.pipeline = p.pipeline) AS minute
FROM {schema}.pipelines p
WHERE %(pipeline)s::text IS NULL OR p.pipeline = %(pipeline)s
