-- Somebody chose that rows from before the adoption get no backfill.
UPDATE {schema}.adopted SET from_now_on = true WHERE source = {source}
