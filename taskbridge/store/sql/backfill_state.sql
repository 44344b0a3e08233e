-- A part of other queries: where the backfill of an adoption `a` stands. Whoever writes a part of it does so only while this is
-- what the rows were read under, so that two backfills, or another adoption meanwhile, never mix.
ROW(a.version, a.again_below, a.backfill_of, a.backfill_after, a.backfill_columns, a.backfilled_at, a.ended_at)::text
