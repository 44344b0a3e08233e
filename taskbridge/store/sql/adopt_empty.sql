-- A table without rows needs no backfill. Its triggers are there, so writers are over; a transaction that sees an older snapshot
-- does not know that.
UPDATE {schema}.adopted a
SET backfilled_at = now()
WHERE a.source = {source} AND a.backfilled_at IS NULL AND a.backfill_after IS NULL AND a.again_below = 0
  AND current_setting('transaction_isolation') = 'read committed'
  AND NOT EXISTS (SELECT FROM {table})
