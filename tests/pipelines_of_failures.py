"""A handler that does to its process what a document says; the workers of `tests/faults/test_workers.py` run it."""

from __future__ import annotations

import os
import signal
import time

from taskbridge import Batch, LatencyNeutral, pipeline
from taskbridge.handlers.journal import journal
from tests.special_exceptions import SPECIAL


@pipeline("invoices", policy=LatencyNeutral(), max_attempts=1)
def handle(batch: Batch) -> None:
    """Do what the documents say; then write the journal."""
    for record in batch:
        time.sleep(record.document.get("sleep", 0))
        match record.document.get("do"):
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case what if what in SPECIAL:
                raise SPECIAL[what]("on purpose")
    journal(batch)
