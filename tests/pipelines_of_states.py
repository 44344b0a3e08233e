"""Pipelines that bring tenants into each state that operators ask about; the workers of `tests/observe/` run them."""

from __future__ import annotations

import os
import time
from pathlib import Path

from taskbridge import Batch, LatencyNeutral, RateLimit, RetryAfter, pipeline
from taskbridge.handlers.journal import journal


@pipeline("orders", max_attempts=2)
def handle(batch: Batch) -> None:
    """Do what the documents say; then write the journal."""
    for record in batch:
        time.sleep(record.document.get("seconds", 0))
        match record.document.get("do"):
            case _ if Path(record.document.get("until", os.devnull) or os.devnull).is_file():
                continue  # what it waited for is mended
            case "fail":
                raise ValueError("the price has no currency")
            case "reject":
                batch.reject(record, "the total is <b>negative</b>")
            case "wait":
                raise RetryAfter(60)
            case "down":
                raise ConnectionError("nobody answers")
    journal(batch)


for name, options in {
    "broken": {},
    "calls": {"rate_limit": RateLimit("1/m", burst=1)},
    "narrow": {"max_runs": 1},
    "slow": {"policy": LatencyNeutral(lease=60, tick=30)},
}.items():
    pipeline(name, **options)(handle)  # type: ignore[arg-type]
