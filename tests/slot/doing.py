"""What the tests of a slot do: save for tenants, let the slot work, lock cursors."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import Connection

from taskbridge.common.run_key import RunKey
from taskbridge.declaring.batch import Batch
from taskbridge.declaring.pipeline import Handler, Pipeline, Pipelines
from taskbridge.producer.notify import notify
from taskbridge.store import record, record_invoice
from taskbridge.worker import slot
from tests.inline import AT_ONCE, Inline

TENANTS = ["a", "b", "c", "d"]


IMPATIENT = {"statement_timeout": 0.5}


def save(inline: Inline, tenants: Sequence[str] = TENANTS, number: str = "1") -> None:
    for tenant in tenants:
        record_invoice(inline.deployment.engine, tenant, number, {})
        inline.deployment.notify_event.delay(tenant)


def two_pipelines(inline: Inline, handler: Handler) -> None:
    """Declare the pipelines invoices and orders, each over the source of its name."""
    pipelines = Pipelines()
    for name in ("invoices", "orders"):
        pipelines.declare(Pipeline(name, handler, AT_ONCE, 500))
    inline.runtime.pipelines = pipelines


def save_orders(inline: Inline, tenants: Sequence[str]) -> None:
    for tenant in tenants:
        record(inline.deployment.engine, "orders", tenant, "1", {"at": time.time()})
        notify(inline.deployment.app, tenant, "orders")


def taken(inline: Inline, most: int = 16) -> list[RunKey]:
    return [message.run for message in inline.runtime.gate.take(most, most)[0]]


def queued(inline: Inline) -> list[str]:
    """Return the tenants of the messages that lie in the queues, the next one first, and leave them there."""
    messages = inline.runtime.gate.take(100, 100)[0]
    inline.runtime.gate.put_back(messages)
    return [message.run.tenant for message in messages]


def handled(inline: Inline) -> dict[str, int]:
    return {
        row.tenant: row.records for row in inline.deployment.rows("SELECT tenant, records FROM taskbridge.sync_cursors")
    }


def quick(inline: Inline) -> None:
    """Let the slot know that the handler is quick."""
    inline.runtime.paces["invoices"].note(1, 0.001)


def nothing(_: Batch) -> None:
    """Handle a batch."""


def note_calls(inline: Inline, then: Callable[[Batch], None] = nothing, **options: Any) -> list[str]:
    """Declare a handler that does `then`; return the tenants for which it is called, as they come."""
    called: list[str] = []

    def handle(batch: Batch) -> None:
        called.append(batch.tenant)
        then(batch)

    inline.handle(handle, **options)
    return called


def do_no_run(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Let the slot do no run; return the tenants of those that it would have done, each time a list."""
    together: list[list[str]] = []

    def note(_: Any, keys: Sequence[RunKey], *__: float) -> list[None]:
        together.append([key.tenant for key in keys])
        return [None] * len(keys)

    monkeypatch.setattr(slot, "do_group", note)
    monkeypatch.setattr(slot, "do_run", lambda _, key: note(_, [key])[0])
    return together


def work(inline: Inline) -> None:
    """Do what a slot does with the next message."""
    (first,) = taken(inline, 1)
    slot.work(inline.runtime, *first)


def run_together(inline: Inline, seconds: float = math.inf) -> list[Exception | None]:
    """Do all queued runs together."""
    return slot.run_together(inline.runtime, taken(inline), seconds)


def failed(errors: Sequence[Exception | None]) -> list[str]:
    """Return the tenants whose runs failed, of one run for each of `TENANTS`."""
    return [tenant for tenant, error in zip(TENANTS, errors, strict=True) if error is not None]


def run_in_a_thread(
    inline: Inline, threads: ThreadPoolExecutor, seconds: float = math.inf
) -> Future[list[Exception | None]]:
    """Do all queued runs together in a thread."""
    return threads.submit(slot.run_together, inline.runtime, taken(inline), seconds)


class Locks:
    """Cursors that another session has locked."""

    def __init__(self, session: Connection) -> None:
        self._session = session

    def take(self, *tenants: str) -> None:
        """Lock the cursors of tenants."""
        cursors = "SELECT FROM taskbridge.sync_cursors WHERE pipeline = 'invoices' AND tenant = ANY (%s) FOR UPDATE"
        self._session.exec_driver_sql(cursors, (list(tenants),))

    def release(self) -> None:
        """Release all."""
        self._session.rollback()


def save_again(inline: Inline) -> None:
    """Let each tenant have a cursor, and another record."""
    inline.handle(nothing)
    save(inline)
    run_together(inline)
    save(inline, number="2")
