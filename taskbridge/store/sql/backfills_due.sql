-- The adopted tables whose rows from before were not all given a record, and of which nobody has chosen that. `again`: changes may
-- have been missed too.
SELECT a.source, quote_ident(n.nspname) || '.' || quote_ident(c.relname) AS called, cardinality(a.key_columns) AS keys,
       {columns_called} AS columns, a.backfilled, a.again_below > 0 AS again
FROM {schema}.adopted a
JOIN pg_class c ON c.oid = a.relation
JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE a.ended_at IS NULL AND a.backfilled_at IS NULL AND NOT a.from_now_on
ORDER BY a.source
