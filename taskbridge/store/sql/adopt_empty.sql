-- A table without rows needs no backfill. Its triggers are there, so writers are over; a transaction that sees an older snapshot
-- does not know that. They wait while this looks, and in a table that was emptied it reads what is left of all rows. So only a
-- small one is looked at, of 8 MB.
UPDATE {schema}.adopted a
SET backfilled_at = now()
WHERE a.source = {source} AND a.backfilled_at IS NULL AND a.backfill_after IS NULL AND a.again_below = 0
  AND current_setting('transaction_isolation') = 'read committed'
  AND CASE WHEN (
          SELECT sum(pg_relation_size(t.relid)) < 8388608
          FROM (SELECT a.relation AS relid UNION SELECT p.relid FROM pg_partition_tree(a.relation) p) t
      ) THEN NOT EXISTS (SELECT FROM {table}) ELSE false END
