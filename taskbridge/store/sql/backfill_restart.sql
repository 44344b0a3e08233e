-- A backfill begins anew and writes a record again for each row, since triggers may have missed changes of it.
UPDATE {schema}.adopted
SET again_below = pg_current_xact_id()::text::bigint, backfill_after = NULL, backfill_columns = NULL, backfilled = 0,
    backfilled_at = NULL, from_now_on = false
WHERE source = %(source)s AND ended_at IS NULL
