-- How many records the next batch may have, after the handler asked to wait. No row: another run owns the cursor.
UPDATE {schema}.sync_cursors SET batch_limit = %(batch_limit)s
WHERE pipeline = %(pipeline)s AND tenant = %(tenant)s AND owner = %(token)s
RETURNING batch_limit
