-- End a pause. No row: there was none.
DELETE FROM {schema}.pauses WHERE pipeline = %(pipeline)s AND tenant = %(tenant)s RETURNING tenant
