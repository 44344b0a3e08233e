"""What a user declares: a pipeline with its source, policy, criteria and handler; and what its failures mean."""
