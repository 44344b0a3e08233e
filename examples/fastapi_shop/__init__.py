"""A shop with FastAPI: its own table of orders, each change of which reaches a warehouse.

docs/how-to/fastapi.md has how it is started.
"""
