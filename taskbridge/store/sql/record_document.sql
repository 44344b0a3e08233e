-- The document of one record as text, no longer than a page shows. Null: the row of an adopted table has it.
SELECT left(jsonb_pretty(document), %(longest)s), length(jsonb_pretty(document)) > %(longest)s
FROM {schema}.records
WHERE source = %(source)s AND tenant = %(tenant)s AND key = %(key)s
