-- The server's clock, in seconds of the Unix epoch.
SELECT extract(epoch FROM clock_timestamp())
