-- A part of the writing of a backfill: the row has a record, which a trigger wrote.
DO NOTHING
