-- Whether the server takes no writes.
SELECT pg_is_in_recovery()
