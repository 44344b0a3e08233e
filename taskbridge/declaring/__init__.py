"""What a pipeline is: its source, policy, criteria and handler, and what a failure of it means."""
