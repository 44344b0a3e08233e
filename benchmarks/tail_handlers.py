"""Declares the pipeline of the benchmark `tail`; only its worker and its look at `status` load it."""

from __future__ import annotations

from benchmarks.marks import mark
from benchmarks.tail import PIPELINE
from taskbridge.declaring.batch import Batch
from taskbridge.declaring.pipeline import pipeline


@pipeline(PIPELINE)
def take(_: Batch) -> None:
    """Mark the call."""
    mark()
