"""Declares `invoices` with a handler that does nothing; only workers of the benchmark of capacity load it."""

from __future__ import annotations

from taskbridge.declaring.batch import Batch
from taskbridge.declaring.pipeline import INVOICES, pipeline


@pipeline(INVOICES)
def take(batch: Batch) -> None:
    """Take the batch and do nothing."""
