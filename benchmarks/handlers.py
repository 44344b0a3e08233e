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
SECONDS_PER_CALL: Final = float(os.environ.get("TASKBRIDGE_BENCH_SECONDS_PER_CALL", "0"))


@pipeline(PIPELINE, policy=POLICY)
def take(batch: Batch) -> None:
    """Mark the call, and take the configured time."""
    mark()
    _sleep(len(batch))


@pipeline(INVOICES)
def handle(batch: Batch) -> None:
    """Mark the call, take the configured time, and write the journal."""
    mark()
    _sleep(len(batch))
    journal(batch)


def _sleep(records: int) -> None:
    if seconds := SECONDS_PER_CALL + SECONDS_PER_RECORD * records:
        time.sleep(seconds)
