-- Write down one action.
INSERT INTO {schema}.audit (who, action, pipeline, tenant, key, detail)
VALUES (%(who)s, %(action)s, %(pipeline)s, %(tenant)s, %(key)s, %(detail)s)
