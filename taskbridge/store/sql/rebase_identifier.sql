-- From now on the records and cursors hold transaction ids of this cluster, and the triggers let records be written.
WITH former AS (DELETE FROM {schema}.taskbridge_cluster)
INSERT INTO {schema}.taskbridge_cluster SELECT system_identifier FROM pg_control_system()
