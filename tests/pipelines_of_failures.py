"""Handlers that do to their process what a document says; the workers of `tests/faults/test_deaths.py` run them."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time

from billiard.exceptions import WorkerLostError
from celery.exceptions import Ignore, Reject, Retry, SoftTimeLimitExceeded, WorkerShutdown, WorkerTerminate

from taskbridge import Batch, LatencyNeutral, pipeline
from taskbridge.handlers.journal import journal

LONG = 50_000_000
"""Characters of an error's text."""
SPECIAL: dict[str, type[BaseException]] = {
    one.__name__: one
    for one in (
        Ignore,
        KeyboardInterrupt,
        MemoryError,
        Reject,
        Retry,
        SoftTimeLimitExceeded,
        WorkerLostError,
        WorkerShutdown,
        WorkerTerminate,
    )
}
"""Exceptions that Celery or its pools treat in a special way."""


def do(what: str) -> None:
    """Do to this process what a document says."""
    match what:
        case "exit":
            sys.exit(3)
        case "cancel":
            raise asyncio.CancelledError
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "terminate":
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(60)
        case "hang":
            time.sleep(60)
        case "long":
            raise ValueError("x" * LONG)
        case _ if what in SPECIAL:
            raise SPECIAL[what]("on purpose")


@pipeline("invoices", policy=LatencyNeutral(), max_attempts=1)
async def handle(batch: Batch) -> None:
    """Do what the documents say; then write the journal."""
    for record in batch:
        await asyncio.sleep(record.document.get("sleep", 0))
        do(record.document.get("do", ""))
    journal(batch)


@pipeline("orders", policy=LatencyNeutral(), max_attempts=1)
def handle_orders(batch: Batch) -> None:
    """Do what the documents say, in the thread of the run; then write the journal."""
    for record in batch:
        do(record.document.get("do", ""))
    journal(batch)
