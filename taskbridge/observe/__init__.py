"""What operators ask, and what their monitoring reads."""
