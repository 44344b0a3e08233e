-- Ends what `begin.sql` or `begin_round.sql` has begun; it is sent together with what comes before it.
COMMIT
