-- A part of other queries: the row of an adopted table of which `r` is the record, as JSON text. Its key is looked up as the
-- type of its column, then compared as text, for two texts may be one value. No row: it is gone. Where no documents are
-- wanted the table is not looked at, so that a key that can no longer be one costs no other record.
(
    SELECT CASE WHEN w.size <= %(small)s THEN coalesce(r.document, {json})::text END AS text,
           CASE WHEN w.size > %(small)s THEN w.size END AS stored,
           CASE WHEN one.wanted THEN r.id IS NOT NULL AND r.document IS NULL AND t.tableoid IS NULL
               ELSE coalesce(r.deleted, false) END AS deleted
    FROM (SELECT %(small)s >= 0 AS wanted) one
    LEFT JOIN {table} t ON {match}
    CROSS JOIN LATERAL (
        SELECT CASE WHEN one.wanted THEN coalesce(pg_column_size(r.document), pg_column_size(t.*)) END AS size
    ) w
    OFFSET 0 -- looked up row by row: the order of the records stays
)
