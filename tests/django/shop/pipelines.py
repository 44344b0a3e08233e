"""What the shop declares."""

from __future__ import annotations

from taskbridge import Batch, pipeline


@pipeline("orders")
def send_orders(batch: Batch) -> None:
    """Do nothing."""
