-- The advance failed; what the handler wrote stays.
ROLLBACK TO SAVEPOINT taskbridge
