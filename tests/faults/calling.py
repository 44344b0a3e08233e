"""A handler that takes its time for each record, as one that calls somebody over HTTP."""

from __future__ import annotations

import os
import time
from pathlib import Path

from taskbridge import Batch, LatencyNeutral, pipeline


@pipeline("calls", policy=LatencyNeutral())
def call(batch: Batch) -> None:
    """Write down each call before it takes its time."""
    for record in batch:
        with Path(os.environ["CALLS"]).open("a", encoding="utf-8") as calls:
            calls.write(f"{record.external_id} {record.document['version']}\n")
        time.sleep(0.1)
        batch.handled(record)
