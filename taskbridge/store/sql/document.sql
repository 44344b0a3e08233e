-- The document of one record that was read without it. No row: it was changed or deleted since.
SELECT d.text, d.deleted,
       (SELECT {adoption_version} FROM {schema}.adopted a LEFT JOIN pg_class c ON c.oid = a.relation WHERE a.source = %(source)s) AS adopted
FROM (
    SELECT i.*, i.key AS external_id
    FROM {schema}.records i
    WHERE i.source = %(source)s AND i.tenant = %(tenant)s AND i.key = %(key)s AND i.revision = %(revision)s
) r
CROSS JOIN LATERAL {document} d
