-- A run failed: keep the error where an operator looks for it, and, if its batch says something about a record, how far
-- the search for that record has come. If its batch could not be read, the next one is half as large. No row: another run
-- owns the cursor, and nothing is changed. The pipeline's next success is asked for (`succeeded.sql`), after the cursor is
-- locked: a frozen process may hold that, and must not hold up the whole pipeline.
WITH failing AS (
    UPDATE {schema}.sync_cursors
    SET failures = failures + 1,
        failed_runs = failed_runs + 1,
        last_error = %(error)s,
        failed_at = clock_timestamp(),
        failing_since = coalesce(failing_since, clock_timestamp()),
        batch_limit = CASE WHEN %(bisecting)s THEN %(batch_limit)s
                           WHEN %(unread)s::integer IS NOT NULL
                               THEN greatest(1, least(batch_limit, %(unread)s::integer) / 2)
                           ELSE batch_limit END,
        suspects = CASE WHEN %(bisecting)s THEN %(suspects)s ELSE suspects END,
        attempts = CASE WHEN %(bisecting)s THEN %(attempts)s ELSE attempts END,
        outages = CASE WHEN %(bisecting)s THEN %(outages)s ELSE outages END,
        deaths = CASE WHEN %(bisecting)s THEN %(deaths)s ELSE deaths END,
        suspect_revision = CASE WHEN %(bisecting)s THEN %(suspect_revision)s::bigint ELSE suspect_revision END
    WHERE pipeline = %(pipeline)s AND tenant = %(tenant)s AND owner = %(token)s
    RETURNING pipeline, failures
), asking AS (
    UPDATE {schema}.pipelines p SET failed = true FROM failing f WHERE p.pipeline = f.pipeline AND NOT p.failed
)
SELECT failures FROM failing
