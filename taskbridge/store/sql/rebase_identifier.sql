-- The records and cursors hold this cluster's transaction ids from now on; until then the triggers refuse to touch them.
WITH former AS (DELETE FROM {schema}.taskbridge_cluster)
INSERT INTO {schema}.taskbridge_cluster SELECT system_identifier FROM pg_control_system()
