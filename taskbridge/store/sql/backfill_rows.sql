-- A part of a page of a backfill: the records of its rows.
SELECT p.tenant, p.key, false AS gone FROM page p WHERE p.counts
