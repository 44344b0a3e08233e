-- Delete what is kept of a pipeline that is no more; its records stay, since others may read them.
WITH pipeline AS (
    DELETE FROM {schema}.pipelines WHERE pipeline = %(pipeline)s RETURNING 1
), cursors AS (
    DELETE FROM {schema}.sync_cursors WHERE pipeline = %(pipeline)s RETURNING 1
), quarantined AS (
    DELETE FROM {schema}.quarantine WHERE pipeline = %(pipeline)s RETURNING 1
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
