-- After `hold_readers.sql`: whether another pipeline reads the source by now, so that what was muted is its work.
SELECT EXISTS (SELECT FROM {schema}.pipelines WHERE source = %(source)s AND pipeline <> %(pipeline)s)
