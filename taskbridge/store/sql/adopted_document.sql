-- A part of other queries: the row of an adopted table of which `r` is the record, as JSON text. Its key is looked up as the
-- type of its column, then compared as text, for two texts may be one value. No row: it is gone.
(
    SELECT CASE WHEN w.size <= %(small)s THEN coalesce(r.document, {json})::text END AS text,
           CASE WHEN w.size > %(small)s THEN w.size END AS stored,
           r.id IS NOT NULL AND r.document IS NULL AND t.tableoid IS NULL AS deleted
    FROM (SELECT 1) one
    LEFT JOIN {table} t ON {match}
    CROSS JOIN LATERAL (
        SELECT CASE WHEN %(small)s >= 0 THEN coalesce(pg_column_size(r.document), pg_column_size(t.*)) END AS size
    ) w
    OFFSET 0 -- looked up row by row: the order of the records stays
)
