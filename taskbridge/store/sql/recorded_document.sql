-- A part of other queries: the document that lies with its record `r`, as text.
(
    SELECT CASE WHEN pg_column_size(r.document) <= %(small)s THEN r.document::text END AS text,
           CASE WHEN pg_column_size(r.document) > %(small)s THEN pg_column_size(r.document) END AS stored,
           coalesce(r.deleted, false) AS deleted
)
