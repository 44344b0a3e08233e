-- The last minutes before a time in which runs began, or runs that failed, of one pipeline or of all.
SELECT minute, sum(CASE WHEN %(failed)s THEN failed ELSE runs END)::bigint AS runs
FROM {schema}.run_minutes
WHERE minute < %(before)s::timestamptz AND minute >= %(since)s::timestamptz
  AND (%(pipeline)s::text IS NULL OR pipeline = %(pipeline)s) AND (NOT %(failed)s OR failed > 0)
GROUP BY minute
ORDER BY minute DESC
LIMIT %(limit)s
