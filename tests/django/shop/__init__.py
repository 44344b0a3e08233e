"""A Django app with a few tables."""
