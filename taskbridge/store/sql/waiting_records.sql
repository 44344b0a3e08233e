-- What waits for one tenant: how many records, and of them the one with the smallest delay.
SELECT count(*) OVER () AS waiting, coalesce(w.delay_ms, %(smallest)s) AS delay_ms, coalesce(w.criterion, '') AS criterion
FROM (SELECT %(tenant)s::text COLLATE "C" AS tenant) t
CROSS JOIN LATERAL {pending} w
ORDER BY delay_ms, w.id
LIMIT 1
