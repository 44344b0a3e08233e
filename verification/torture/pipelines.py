"""The pipelines that the workers of an arena run. What they do with a record stands in the record's document.

They keep two books. The ledger is outside the project's tables and outside Postgres: a file per process, a line per
begin and end of a delivery, and per record that does something out of the ordinary. `torture_advances` is written in
the transaction that advances the cursor, with the position that the batch was read at, so two rows with one position
are two advances from it. A batch that updates its row of `torture_totals` holds a lock that its successor needs.

Both have one handler. For `parcels` it does not touch the batch's connection, but to look whether it is as new for a
part of the tenants, unless a document asks for that, and the second book is not kept.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from celery.signals import worker_ready

from taskbridge import Batch, LatencyNeutral, Record, app, pipeline
from taskbridge.handlers.journal import journal
from taskbridge.process.runtime import runtime_of
from verification.torture import clock, guards
from verification.torture.acts import ACTS, MAX_ATTEMPTS, SOFT_TIME_LIMIT, Leave
from verification.torture.kinds import INVOICES, PARCELS, PIPELINES, uses_session
from verification.torture.pristine import found_context, found_session
from verification.torture.users import GOODS

BOOKS = Path(os.environ["TORTURE_BOOKS"])
WORKER = os.environ["TORTURE_WORKER"]
BATCH_SIZE = int(os.environ["TORTURE_BATCH_SIZE"])

DOWN = BOOKS / "downstream-is-down"
"""While this file exists, what the handler calls is down."""
FLOOD = BOOKS / "flood"
"""While this file exists, the records of a flood take their time."""

if "TORTURE_CLOCK" in os.environ:
    clock.move(float(os.environ["TORTURE_CLOCK"]))
for guard in filter(None, os.environ.get("TORTURE_WITHOUT", "").split(",")):
    guards.take_out(guard)


class Transient(Exception):
    """The handler could not do its work this time."""


@worker_ready.connect
def _note_ticker(**_: Any) -> None:
    """Write which worker it is that Redis knows by this name."""
    (BOOKS / f"ticker-{vars(runtime_of(app).gate)['_ticker']}").write_text(WORKER)


_calls = itertools.count()
"""Numbers of calls. One that was given up at its time limit may go on beside the next one of the same run's token."""


@cache
def _ledger(pid: int) -> int:
    return os.open(BOOKS / f"{WORKER}-{pid}.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


def write(batch: Batch, what: str, **more: Any) -> None:
    """Write one line. The monotonic clock is the machine's, whatever the worker's wall clock says."""
    line: dict[str, Any] = {
        "at": time.monotonic(),
        "what": what,
        "worker": WORKER,
        "tenant": batch.tenant,
        "token": batch.token,
        **more,
    }
    os.write(_ledger(os.getpid()), f"{json.dumps(line)}\n".encode())


def handle(batch: Batch) -> None:
    """Do what the documents ask for, and note when the call is over, also by an error."""
    call = next(_calls)
    _check_context(batch)
    try:
        for seconds in _handle(batch, call):
            time.sleep(seconds)
    finally:
        write(batch, "left", call=call)


async def handle_async(batch: Batch) -> None:
    """Do the same in a coroutine: while it waits, the others of its process go on."""
    call = next(_calls)
    _check_context(batch)
    try:
        for seconds in _handle(batch, call):
            await asyncio.sleep(seconds)
    finally:
        write(batch, "left", call=call)


def _check_context(batch: Batch) -> None:
    if found := found_context():
        write(batch, "leaked", found=found)


def _check_session(batch: Batch) -> None:
    if found := found_session(batch):
        write(batch, "leaked", found=found)


def _handle(batch: Batch, call: int) -> Iterator[float]:
    """Do what the documents ask for, then write the journal; what is yielded are the seconds to wait for."""
    if batch.pipeline == INVOICES or uses_session(batch.tenant):
        _check_session(batch)
    if has_totals := any(record.document.get("totals") for record in batch):
        batch.connection.exec_driver_sql(
            "INSERT INTO torture_totals AS t VALUES (%s, %s) "
            "ON CONFLICT (tenant) DO UPDATE SET taken = t.taken + excluded.taken",
            (batch.tenant, len(batch)),
        )
    position, session = _standing(batch) if batch.pipeline == INVOICES or has_totals else (0, 0)
    records = [(record.external_id, record.revision) for record in batch]
    versions = [record.document["version"] for record in batch]
    write(batch, "began", call=call, position=position, session=session, records=records, versions=versions)
    if DOWN.exists():
        raise ConnectionError("the downstream is down")
    for record in batch:
        if record.document["tenant"] != batch.tenant:
            write(batch, "mixed", records=records)
        yield record.document.get("seconds", 0.0)
        if "flood" in record.document and FLOOD.exists():
            yield record.document["flood"]
        try:
            _do(batch, record)
        except Leave:
            return
    if batch.pipeline == PARCELS:
        done = [one for one in records if one[0] not in batch.rejected]
        write(batch, "ended", call=call, parcels=done)
        return
    batch.connection.exec_driver_sql(
        "INSERT INTO torture_advances (tenant, position, token) VALUES (%s, %s, %s)",
        (batch.tenant, position, batch.token),
    )
    journal(batch)
    write(batch, "ended", call=call)


def handle_goods(batch: Batch) -> None:
    """Write down how the users' rows are delivered."""
    _check_context(batch)
    _check_session(batch)
    for record in batch:
        batch.connection.exec_driver_sql(
            "INSERT INTO torture_goods_seen VALUES (%s, %s, %s, %s, %s)",
            (batch.tenant, record.external_id, record.revision, record.deleted, record.document.get("version")),
        )


def _standing(batch: Batch) -> tuple[int, int]:
    """Return where the cursor stands, and the process id of the batch's session."""
    found = batch.connection.exec_driver_sql(
        "SELECT sweeps, pg_backend_pid() FROM taskbridge.sync_cursors WHERE pipeline = %s AND tenant = %s",
        (batch.pipeline, batch.tenant),
    ).one()
    return found[0], found[1]


for name in PIPELINES:
    pipeline(
        name,
        policy=LatencyNeutral(),
        batch_size=BATCH_SIZE,
        max_attempts=MAX_ATTEMPTS,
        soft_time_limit=SOFT_TIME_LIMIT,
    )(handle_async if "TORTURE_ASYNC" in os.environ else handle)


pipeline(GOODS, policy=LatencyNeutral(), batch_size=BATCH_SIZE)(handle_goods)


def _do(batch: Batch, record: Record) -> None:
    document = record.document
    if "act" in document:
        act = ACTS[document["act"]]
        if act.lasts or _first_times(record, 1):
            write(batch, "tried", record=(record.external_id, record.revision))
            act.variants[document["variant"] % len(act.variants)](batch, record)
    if _first_times(record, document.get("fails", 0)):
        raise {"connection": ConnectionError, "other": Transient}[document["error"]](record.external_id)
    if "reject" in document:
        batch.reject(record, document["reject"])


def _first_times(record: Record, count: int) -> bool:
    """Say so `count` times per record, with a file for each, since the next try may be elsewhere."""
    for number in range(count):
        marker = BOOKS / f"{record.tenant}.{record.external_id}.{record.revision}.{number}"
        try:
            os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            continue
        return True
    return False
