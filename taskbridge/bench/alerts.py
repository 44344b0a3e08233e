"""Declares the pipeline of the benchmarks of the second pattern; only their workers load it."""

from __future__ import annotations

from taskbridge.batch import Batch
from taskbridge.bench.lateness import PIPELINE, POLICY
from taskbridge.pipeline import pipeline


@pipeline(PIPELINE, policy=POLICY)
def handle(batch: Batch) -> None:
    """Take the batch and do nothing."""
