-- A part of a page of a backfill: the row has a record, which a trigger wrote.
DO NOTHING
