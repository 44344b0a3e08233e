-- Whether this role may read the records.
SELECT has_table_privilege('{schema}.records', 'SELECT')
