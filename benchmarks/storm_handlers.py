"""Declares the pipeline of the storm; only its workers load it."""

from __future__ import annotations

from benchmarks.marks import mark
from taskbridge.declaring.batch import Batch
from taskbridge.declaring.pipeline import pipeline

__all__ = ["PIPELINE"]

PIPELINE = "storm"


@pipeline(PIPELINE)
def take(batch: Batch) -> None:  # noqa: ARG001 - it is given the records, and only notes the call
    """Mark the call."""
    mark()
