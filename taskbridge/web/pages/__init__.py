"""The dashboard: server-rendered pages for operators."""
