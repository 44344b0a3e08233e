"""A pipeline of orders, for workers that do not declare `invoices`."""

from __future__ import annotations

from taskbridge import Batch, pipeline


@pipeline("orders")
def handle(batch: Batch) -> None:
    """Do nothing."""
