"""Searches that take longer than tests may: `make torture`, `make fuzz`."""
