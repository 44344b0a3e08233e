-- A part of other queries: the row of an adopted table of which `r` is the record, as JSON text. The row is looked up with the
-- key as a value of the column's type, and its own key then compared as text, because two texts may be one value. No row of the
-- table: it is gone. OFFSET 0 lets it be looked up row by row, so that the order of the records stays. Without documents the table is not read, so that a key that is no value any more fails no other record.
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
    OFFSET 0
)
