"""Declares the pipeline of the benchmark `no-event`; only its workers load it."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

from taskbridge.batch import Batch
from taskbridge.pipeline import pipeline

__all__ = ["DELAYS", "SOURCE"]

SOURCE: Final = "bench-no-event"
DELAYS: Final = "TASKBRIDGE_BENCH_DELAYS"
"""The variable that names the file where the delays go, one a line, in milliseconds."""


@pipeline(SOURCE)
def take(batch: Batch) -> None:
    """Note how long ago each record was written."""
    called = time.time()
    lines = "".join(f"{(called - record.document['at']) * 1000}\n" for record in batch)
    with Path(os.environ[DELAYS]).open("a", encoding="ascii") as file:
        file.write(lines)
