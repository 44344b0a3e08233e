-- The moment before which a record is old, by the server's clock.
SELECT now() - make_interval(secs => %(seconds)s)
