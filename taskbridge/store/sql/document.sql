-- The document of one record that was read without it. No row: it was changed or deleted since.
SELECT i.document::text
FROM {schema}.records i
WHERE i.source = %(source)s AND i.tenant = %(tenant)s AND i.key = %(key)s AND i.revision = %(revision)s
