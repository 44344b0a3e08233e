"""From a run message to the advance of the cursor: runner, delivery, failures, ticker and tail."""
