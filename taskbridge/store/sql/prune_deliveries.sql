-- One step of prune: of the next deliveries by id, delete the old ones.
WITH page AS MATERIALIZED (
    SELECT id, pipeline, delivered_at < %(before)s AS old
    FROM {schema}.deliveries WHERE id > %(after)s ORDER BY id LIMIT %(limit)s
), done AS MATERIALIZED (
    SELECT id FROM page WHERE old AND (%(pipeline)s::text IS NULL OR pipeline = %(pipeline)s)
), deleted AS (
    DELETE FROM {schema}.deliveries j USING done d WHERE NOT %(dry_run)s AND j.id = d.id RETURNING 1
)
SELECT (SELECT count(*) FROM deleted) + (SELECT count(*) FROM done WHERE %(dry_run)s) AS pruned,
       0 AS quarantine,
       (SELECT count(*) FROM done) AS old,
       '{}'::text[] AS held,
       max(id) AS last,
       count(*) = %(limit)s AND bool_or(old) AS more
FROM page
