-- The revision of a schema.
SELECT version_num FROM {table}
