"""Declares the pipeline of the benchmark `no-event`; only its workers load it."""

from __future__ import annotations

import os
import time
from pathlib import Path

from benchmarks.no_event import DELAYS, SOURCE
from taskbridge.declaring.batch import Batch
from taskbridge.declaring.pipeline import pipeline


@pipeline(SOURCE)
def take(batch: Batch) -> None:
    """Note how long ago each record was written."""
    called = time.time()
    lines = "".join(f"{(called - record.document['at']) * 1000}\n" for record in batch)
    with Path(os.environ[DELAYS]).open("a", encoding="ascii") as file:
        file.write(lines)
