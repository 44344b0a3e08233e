"""Declares the pipeline of the benchmark `bulk`; only its workers load it."""

from __future__ import annotations

import os
import time
from pathlib import Path

from benchmarks.bulk import SEEN, SOURCE
from taskbridge.declaring.batch import Batch
from taskbridge.declaring.pipeline import pipeline


@pipeline(SOURCE)
def take(batch: Batch) -> None:
    """Note when the batch came, of whom, and how many rows it has."""
    called = time.time()
    with Path(os.environ[SEEN]).open("a", encoding="ascii") as file:
        file.write(f"{called} {batch.tenant} {len(batch)}\n")
