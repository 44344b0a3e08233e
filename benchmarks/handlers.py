"""Declares the pipelines of the benchmarks; only their workers load it."""

from __future__ import annotations

import os
import time
from typing import Final

from benchmarks.marks import mark
from benchmarks.waiting import PIPELINE, POLICY
from taskbridge.declaring.batch import Batch
from taskbridge.declaring.pipeline import INVOICES, pipeline
from taskbridge.handlers.journal import journal

SECONDS_PER_RECORD: Final = float(os.environ.get("TASKBRIDGE_BENCH_SECONDS_PER_RECORD", "0"))


@pipeline(PIPELINE, policy=POLICY)
def take(batch: Batch) -> None:
    """Mark the call, and take as long as it is told for each record."""
    mark()
    if SECONDS_PER_RECORD:
        time.sleep(SECONDS_PER_RECORD * len(batch))


@pipeline(INVOICES)
def handle(batch: Batch) -> None:
    """Mark the call, take as long as it is told for each record, and write the journal."""
    mark()
    if SECONDS_PER_RECORD:
        time.sleep(SECONDS_PER_RECORD * len(batch))
    journal(batch)
