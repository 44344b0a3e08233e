"""Declares the pipelines of the benchmarks; only their workers load it."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

from benchmarks.marks import mark
from benchmarks.waiting import PIPELINE, POLICY
from taskbridge.declaring.batch import Batch
from taskbridge.declaring.pipeline import INVOICES, pipeline
from taskbridge.handlers.journal import journal

SECONDS_PER_RECORD: Final = float(os.environ.get("TASKBRIDGE_BENCH_SECONDS_PER_RECORD", "0"))
CALLS: Final = os.environ.get("TASKBRIDGE_BENCH_CALLS")
"""A file that gets the tenant of each call as a line."""


@pipeline(PIPELINE, policy=POLICY)
def take(batch: Batch) -> None:
    """Mark the call, and take as long as it is told for each record."""
    mark()
    if SECONDS_PER_RECORD:
        time.sleep(SECONDS_PER_RECORD * len(batch))


@pipeline(INVOICES)
def handle(batch: Batch) -> None:
    """Take as long as it is told for each record, refuse those that say so, and write the journal."""
    mark()
    if CALLS:
        with Path(CALLS).open("a") as calls:
            calls.write(f"{batch.tenant}\n")
    if SECONDS_PER_RECORD:
        time.sleep(SECONDS_PER_RECORD * len(batch))
    for record in batch:
        if record.document.get("bad"):
            raise ValueError(f"{record.external_id} cannot be handled")
    journal(batch)
