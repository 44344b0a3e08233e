"""A coroutine that does to its process what a document says; the workers of `tests/faults/test_deaths.py` run it."""

from __future__ import annotations

import asyncio
import os
import signal
import sys

from taskbridge import Batch, LatencyNeutral, pipeline
from taskbridge.handlers.journal import journal


@pipeline("invoices", policy=LatencyNeutral(), max_attempts=1)
async def handle(batch: Batch) -> None:
    """Do what the documents say; then write the journal."""
    for record in batch:
        await asyncio.sleep(record.document.get("sleep", 0))
        match record.document.get("do"):
            case "exit":
                sys.exit(3)
            case "cancel":
                raise asyncio.CancelledError
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
    journal(batch)
