"""Handlers that do to their process what a document says; the workers of `tests/faults/test_deaths.py` run them."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time

from taskbridge import Batch, LatencyNeutral, pipeline
from taskbridge.handlers.journal import journal
from tests.special_exceptions import LONG, SPECIAL


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
