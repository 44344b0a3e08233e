-- Records that were handled leave quarantine: those that were tried again, and those that have changed since.
DELETE FROM {schema}.quarantine
WHERE pipeline = %(pipeline)s AND tenant = %(tenant)s AND external_id = ANY(%(external_ids)s)
