-- The time of the server.
SELECT clock_timestamp()
