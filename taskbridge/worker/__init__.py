"""From a run message to the advance of the cursor (slot, run, group, delivery, handler, failures); ticker, poller."""
