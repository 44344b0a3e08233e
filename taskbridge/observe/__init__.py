"""Answers about a deployment, for commands, the dashboard and metrics to format.

Times are in UTC; None means unknown. A sentence is one line of text. It contains the names of tenants and keys
unchanged, so whatever displays it must escape markup and unprintable characters.
"""
