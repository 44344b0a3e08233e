"""The pipelines of a worker from before a deployment."""

from __future__ import annotations

from taskbridge import Batch, pipeline
from taskbridge.handlers.journal import journal


@pipeline("invoices")
def handle(batch: Batch) -> None:
    """Write the journal."""
    journal(batch)
