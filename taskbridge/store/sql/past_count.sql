-- How many runs began since a time, or how many of them failed, of one pipeline or of all, as the sums of the minutes say.
SELECT coalesce(sum(CASE WHEN %(failed)s THEN failed ELSE runs END), 0)::bigint
FROM {schema}.run_minutes
WHERE minute >= %(since)s::timestamptz AND (%(pipeline)s::text IS NULL OR pipeline = %(pipeline)s)
