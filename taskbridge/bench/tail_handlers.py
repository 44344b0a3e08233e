"""Declares the pipeline of the benchmark `tail`; only its worker and its look at `status` load it."""

from __future__ import annotations

from taskbridge.batch import Batch
from taskbridge.bench.marks import mark
from taskbridge.bench.tail import PIPELINE
from taskbridge.pipeline import pipeline


@pipeline(PIPELINE)
def take(_: Batch) -> None:
    """Mark the call."""
    mark()
