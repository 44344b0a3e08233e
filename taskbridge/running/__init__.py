"""From a run message to the advance of the cursor: slot, runner, delivery, failures, ticker and tail."""
