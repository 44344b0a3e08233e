-- A part of other queries: which rights the role `o.role` lacks that a trigger function of an adopted table uses with them.
ARRAY(
    SELECT replace(l.what, '"', '')
    FROM (VALUES
        ('USAGE on the schema {schema}', has_schema_privilege(o.role, '{schema}'::regnamespace, 'USAGE')),
        ('SELECT on {schema}.adopted', has_table_privilege(o.role, '{schema}.adopted', 'SELECT')),
        ('SELECT on {schema}.records', has_table_privilege(o.role, '{schema}.records', 'SELECT')),
        ('INSERT on {schema}.records', has_table_privilege(o.role, '{schema}.records', 'INSERT')),
        ('UPDATE on {schema}.records', has_table_privilege(o.role, '{schema}.records', 'UPDATE')),
        ('EXECUTE on {schema}.last_id(text)', has_function_privilege(o.role, '{schema}.last_id(text)', 'EXECUTE')),
        ('EXECUTE on {schema}.next_id(text, bigint)', has_function_privilege(o.role, '{schema}.next_id(text,bigint)', 'EXECUTE')),
        ('EXECUTE on {schema}.next_revision(bigint)', has_function_privilege(o.role, '{schema}.next_revision(bigint)', 'EXECUTE')),
        ('EXECUTE on {schema}.owns_records()', has_function_privilege(o.role, '{schema}.owns_records()', 'EXECUTE')),
        ('EXECUTE on {schema}.shown(text)', has_function_privilege(o.role, '{schema}.shown(text)', 'EXECUTE')),
        ('EXECUTE on {schema}.unfit(text, text)', has_function_privilege(o.role, '{schema}.unfit(text,text)', 'EXECUTE'))
    ) l (what, has_it)
    WHERE NOT l.has_it
)
