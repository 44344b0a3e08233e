-- A handler raised: keep the error where an operator looks for it.
UPDATE sync_cursors
SET failures = failures + 1, last_error = %(error)s, failed_at = now()
WHERE pipeline = %(pipeline)s AND tenant = %(tenant)s AND owner = %(token)s
