-- Whose token holds the cursor.
SELECT owner FROM {schema}.sync_cursors WHERE pipeline = %(pipeline)s AND tenant = %(tenant)s
