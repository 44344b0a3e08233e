-- Before a backfill writes: backfills take turns, and another adoption is waited for, while no record is held yet.
LOCK TABLE {schema}.adopted IN ROW EXCLUSIVE MODE;
SELECT FROM {schema}.adopted WHERE source = %(source)s FOR NO KEY UPDATE
