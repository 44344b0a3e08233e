"""Orders, and what was shipped."""
