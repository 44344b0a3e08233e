"""A pipeline with criteria that writes nothing but the journal."""

from __future__ import annotations

from taskbridge import Batch, Criterion, DelaySinceLastRun, pipeline
from taskbridge.handlers.journal import journal

ALERTS = DelaySinceLastRun((Criterion("$.level", "ERROR", "$.service", 0.5),))


@pipeline("alerts-of-services", policy=ALERTS)
def alert(batch: Batch) -> None:
    """Write the journal."""
    journal(batch)
