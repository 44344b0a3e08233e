-- All rows have their records. What follows are records whose row may be gone, in the order of tenant and key.
UPDATE {schema}.adopted SET backfill_of = %(phase)s, backfill_after = ARRAY['', ''] WHERE source = %(source)s
