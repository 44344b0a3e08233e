-- Whether a schema is missing.
SELECT to_regnamespace(%(name)s) IS NULL
