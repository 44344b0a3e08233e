-- Where a backfill stands. Null in `backfill_after`: at the beginning.
SELECT a.backfill_of, a.backfill_after, a.backfill_columns, a.backfilled, a.backfilled_at IS NOT NULL AS is_done, a.again_below,
       {backfill_state} AS state
FROM {schema}.adopted a
WHERE a.source = %(source)s AND a.ended_at IS NULL
