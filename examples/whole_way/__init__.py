"""Webhooks in, batches out over HTTP, on one machine: `python -m examples.whole_way` in a checkout.

`shop.py` is all that one writes. `downstream.py` plays somebody else's server, and `__main__.py` the provider.
"""
