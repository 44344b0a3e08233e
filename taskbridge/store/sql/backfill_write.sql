-- The records of some rows, and the place where the backfill stands then. No row: it stood elsewhere, and nothing was written.
WITH held AS MATERIALIZED (
    SELECT FROM {schema}.adopted a WHERE a.source = {source} AND {backfill_state} = %(state)s
), written AS (
{records}
)
UPDATE {schema}.adopted a
SET from_now_on = false,
    backfill_of = %(phase)s,
    backfill_after = %(place)s::text[],
    backfill_columns = {columns},
    backfilled = %(rows)s,
    backfilled_at = CASE WHEN %(is_done)s THEN now() END
WHERE a.source = {source} AND EXISTS (SELECT FROM held)
RETURNING {backfill_state}
