-- What a migration guessed that a pipeline reads was wrong. What was not guessed stays.
UPDATE {schema}.pipelines SET source = %(source)s, guessed = false WHERE pipeline = %(pipeline)s AND guessed
RETURNING source
