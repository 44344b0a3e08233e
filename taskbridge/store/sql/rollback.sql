-- Ends the transaction of a batch that is not to take effect.
ROLLBACK
