-- After a table was adopted: the records of `adopted_missed.sql` have had their effect, which is that a backfill is due.
UPDATE {schema}.records SET discarded_at = now()
WHERE source = {source} AND tenant = '' AND key > 'columns changed, ' AND key < 'columns changed-' AND discarded_at IS NULL
