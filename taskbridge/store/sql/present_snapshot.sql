-- What is committed now, and what is under way.
SELECT pg_current_snapshot()::text
