"""The dashboard: what operators ask, answered by pages that are made on the server."""
