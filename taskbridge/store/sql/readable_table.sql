-- Whether this role may read a table.
SELECT has_table_privilege(%(relation)s::oid, 'SELECT')
