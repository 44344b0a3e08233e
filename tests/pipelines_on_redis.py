"""Pipelines on two Redis servers: `invoices` on the default one, `orders` on another."""

from __future__ import annotations

from taskbridge import Batch, pipeline
from tests.pipelines import handle

__all__ = ["take"]


@pipeline("orders", redis="orders")
def take(batch: Batch) -> None:
    """Do what the pipeline of invoices does."""
    handle(batch)
