"""Answers for operators, and metrics for their monitoring."""
