"""Ready-made handlers."""
