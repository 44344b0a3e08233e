"""Searches that take longer than tests may, and the model: `make torture`, `make fuzz`, `make search`."""
