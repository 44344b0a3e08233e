"""What the hot paths cost, counted and not timed."""
