"""Spans of events and runs, with the real SDK."""
