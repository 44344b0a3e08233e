-- Before a batch is read by a run that has claimed its cursor. A claim sets the same itself.
SELECT {batch_settings}
