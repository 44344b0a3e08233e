"""The pipeline of the benchmarks of the second pattern. Its workers find it through TASKBRIDGE_PIPELINES."""

from __future__ import annotations

from taskbridge.batch import Batch
from taskbridge.criteria import Criterion
from taskbridge.pipeline import pipeline
from taskbridge.policy import DelaySinceLastRun

__all__ = ["PIPELINE", "POLICY"]

PIPELINE = "bench-alerts"
POLICY = DelaySinceLastRun((Criterion("$.level", "ERROR", "$.service", 3600),))


@pipeline(PIPELINE, policy=POLICY)
def handle(batch: Batch) -> None:
    """Take the batch and do nothing."""
