-- Whether a source has any record.
SELECT EXISTS (SELECT FROM {schema}.records WHERE source = %(source)s)
