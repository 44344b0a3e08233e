-- Delete what is kept of a pipeline that is no more; its records stay, since others may read them. Cursors go before
-- quarantine, which is the order in which a run that is still on takes them, so that neither waits for the other in a circle.
WITH pipeline AS (
    DELETE FROM {schema}.pipelines WHERE pipeline = %(pipeline)s RETURNING 1
), cursors AS (
    DELETE FROM {schema}.sync_cursors WHERE pipeline = %(pipeline)s RETURNING 1
), quarantined AS (
    DELETE FROM {schema}.quarantine
    WHERE pipeline = %(pipeline)s AND (SELECT count(*) FROM cursors) >= 0 RETURNING 1
), tails AS (
    DELETE FROM {schema}.tails WHERE pipeline = %(pipeline)s
), runs AS (
    DELETE FROM {schema}.runs WHERE pipeline = %(pipeline)s
), minutes AS (
    DELETE FROM {schema}.run_minutes WHERE pipeline = %(pipeline)s
), pauses AS (
    DELETE FROM {schema}.pauses WHERE pipeline = %(pipeline)s
)
SELECT (SELECT count(*) FROM pipeline) AS pipelines, (SELECT count(*) FROM cursors) AS cursors,
       (SELECT count(*) FROM quarantined) AS quarantined
