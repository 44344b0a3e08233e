-- A pipeline's source, where a migration could only guess it. One that was not guessed stays, and gives no row.
UPDATE {schema}.pipelines SET source = %(source)s, guessed = false WHERE pipeline = %(pipeline)s AND guessed
RETURNING source
