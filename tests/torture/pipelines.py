"""The pipeline that the workers of an arena run. What it does with a record stands in the record's document.

It keeps two books. The ledger is outside the project's tables and outside Postgres: a file per process, a line per
begin and end of a hand-over. `torture_advances` is written in the transaction that advances the cursor, with the
position that the batch was read at, so two rows with one position are two advances from it.
"""

from __future__ import annotations

import json
import os
import time
from functools import cache
from pathlib import Path
from typing import Any

from taskbridge import Batch, LatencyNeutral, Record, pipeline
from taskbridge.handlers.journal import journal
from tests.torture import clock, guards

BOOKS = Path(os.environ["TORTURE_BOOKS"])
WORKER = os.environ["TORTURE_WORKER"]
BATCH_SIZE = int(os.environ["TORTURE_BATCH_SIZE"])

MAX_ATTEMPTS = 2

DOWN = BOOKS / "downstream-is-down"
"""While this file exists, what the handler calls is down."""

if "TORTURE_CLOCK" in os.environ:
    clock.move(float(os.environ["TORTURE_CLOCK"]))
if "TORTURE_WITHOUT" in os.environ:
    guards.take_out(os.environ["TORTURE_WITHOUT"])


class Transient(Exception):
    """The handler could not do its work this time."""


@cache
def _ledger(pid: int) -> int:
    return os.open(BOOKS / f"{WORKER}-{pid}.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


def write(batch: Batch, what: str, position: int | None) -> None:
    """Write one line. The monotonic clock is the machine's, whatever the worker's wall clock says."""
    line: dict[str, Any] = {
        "at": time.monotonic(),
        "what": what,
        "worker": WORKER,
        "tenant": batch.tenant,
        "token": batch.token,
        "position": position,
        "records": [(record.external_id, record.revision) for record in batch],
    }
    os.write(_ledger(os.getpid()), f"{json.dumps(line)}\n".encode())


@pipeline("invoices", policy=LatencyNeutral(), batch_size=BATCH_SIZE, max_attempts=MAX_ATTEMPTS)
def handle(batch: Batch) -> None:
    """Do what the documents ask for, then write the journal."""
    position = batch.connection.exec_driver_sql(
        "SELECT sweeps FROM sync_cursors WHERE pipeline = %s AND tenant = %s", (batch.pipeline, batch.tenant)
    ).scalar_one()
    write(batch, "began", position)
    if DOWN.exists():
        raise ConnectionError("the downstream is down")
    for record in batch:
        if record.document["tenant"] != batch.tenant:
            write(batch, "mixed", position)
        time.sleep(record.document.get("seconds", 0.0))
        _fail(record)
        if "reject" in record.document:
            batch.reject(record, record.document["reject"])
    batch.connection.exec_driver_sql(
        "INSERT INTO torture_advances (tenant, position, token) VALUES (%s, %s, %s)",
        (batch.tenant, position, batch.token),
    )
    journal(batch)
    write(batch, "ended", position)


def _fail(record: Record) -> None:
    """Raise as often as the document asks for; a file for each time counts, since the next try may be elsewhere."""
    if record.document.get("poison"):
        raise ValueError(f"{record.external_id} cannot be handled")
    for number in range(record.document.get("fails", 0)):
        marker = BOOKS / f"{record.tenant}.{record.external_id}.{record.revision}.{number}"
        try:
            os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            continue
        raise {"connection": ConnectionError, "other": Transient}[record.document["error"]](record.external_id)
