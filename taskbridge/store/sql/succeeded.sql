-- The handler took a record of this tenant, in a trial that moves no cursor.
UPDATE {schema}.sync_cursors SET succeeded_at = clock_timestamp() WHERE pipeline = %(pipeline)s AND tenant = %(tenant)s
