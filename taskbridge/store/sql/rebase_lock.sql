-- Before a rebase: nobody writes records or moves cursors until it ends, and whoever did has committed. Reading goes on.
LOCK TABLE {schema}.records, {schema}.sync_cursors, {schema}.pipelines, {schema}.quarantine, {schema}.taskbridge_cluster
    IN EXCLUSIVE MODE
