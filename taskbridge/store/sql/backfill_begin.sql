-- Where a backfill goes on; the row is held for its page, so that two backfills take turns. Null: at the beginning.
SELECT backfill_of, backfill_after, backfill_columns, backfilled, backfilled_at IS NOT NULL AS is_done, again_below
FROM {schema}.adopted WHERE source = %(source)s AND ended_at IS NULL FOR UPDATE
