-- The document of one record that was read without it. No row: it was changed or deleted since.
SELECT i.document::text
FROM (SELECT %(pipeline)s::text AS pipeline) c
JOIN {rows} i ON {of_pipeline} i.tenant = %(tenant)s AND i.external_id = %(external_id)s AND i.revision = %(revision)s
