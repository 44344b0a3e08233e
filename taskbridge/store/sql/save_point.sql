-- Before a cursor moves in a batch's transaction: where the run history cannot be written, it moves without.
SAVEPOINT taskbridge
