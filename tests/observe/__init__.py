"""What operators ask, of real workers in real states."""
