-- How many deliveries the journal holds, and how many of them repeat one of the same revision.
SELECT count(*) AS deliveries,
       count(*) - count(DISTINCT (tenant, external_id, revision)) AS duplicates
FROM {schema}.deliveries
WHERE pipeline = %(pipeline)s
