"""A slot in the process of the tests: save for tenants, let the slot work, lock cursors."""

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
from tests.deployment import Deployment
from tests.inline import AT_ONCE, Inline

TENANTS = ["a", "b", "c", "d"]
IMPATIENT = pytest.mark.parametrize("deployment", [{"statement_timeout": 0.5}], indirect=True)


def nothing(_: Batch) -> None:
    """Handle a batch."""


class Slot(Inline):
    """Runs as a slot does them: several together, and more that it takes from the queues."""

    def __init__(self, deployment: Deployment) -> None:
        super().__init__(deployment)
        self.gate = self.runtime.gate
        self.runtime.serves = self.runtime.taken_from = frozenset(self.runtime.keys.queues)

    def save(self, tenants: Sequence[str] = TENANTS, number: str = "1") -> None:
        for tenant in tenants:
            record_invoice(self.deployment.engine, tenant, number, {})
            self.deployment.notify_event.delay(tenant)

    def save_again(self) -> None:
        """Let each tenant have a cursor, and another record."""
        self.handle(nothing)
        self.save()
        self.run_together()
        self.save(number="2")

    def two_pipelines(self, handler: Handler) -> None:
        """Declare the pipelines invoices and orders, each over the source of its name."""
        pipelines = Pipelines()
        for name in ("invoices", "orders"):
            pipelines.declare(Pipeline(name, handler, AT_ONCE, 500))
        self.runtime.pipelines = pipelines

    def save_orders(self, tenants: Sequence[str]) -> None:
        for tenant in tenants:
            record(self.deployment.engine, "orders", tenant, "1", {"at": time.time()})
            notify(self.deployment.app, tenant, "orders")

    def note_calls(self, then: Callable[[Batch], None] = nothing, **options: Any) -> list[str]:
        """Declare a handler that does `then`; return the tenants for which it is called, as they come."""
        called: list[str] = []

        def handle(batch: Batch) -> None:
            called.append(batch.tenant)
            then(batch)

        self.handle(handle, **options)
        return called

    def quick(self) -> None:
        """Let the slot know that the handler is quick."""
        self.runtime.paces["invoices"].note(1, 0.001)

    def taken(self, most: int = 16) -> list[RunKey]:
        return [message.run for message in self.gate.take(most, most)[0]]

    def queued(self) -> list[str]:
        """Return the tenants of the messages that lie in the queues, the next one first, and leave them there."""
        messages = self.gate.take(100, 100)[0]
        self.gate.put_back(messages)
        return [message.run.tenant for message in messages]

    def handled(self) -> dict[str, int]:
        return {row.tenant: row.records for row in self.deployment.rows("SELECT * FROM taskbridge.sync_cursors")}

    def work(self) -> None:
        """Do what a slot does with the next message."""
        (first,) = self.taken(1)
        slot.work(self.runtime, *first)

    def run_together(self, seconds: float = math.inf) -> list[Exception | None]:
        """Do all queued runs together."""
        return slot.run_together(self.runtime, self.taken(), seconds)

    def run_in_a_thread(self, threads: ThreadPoolExecutor, seconds: float = math.inf) -> Future[list[Exception | None]]:
        """Do all queued runs together in a thread."""
        return threads.submit(slot.run_together, self.runtime, self.taken(), seconds)


def do_no_run(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Let the slot do no run; return the tenants of those that it would have done, each time a list."""
    together: list[list[str]] = []

    def note(_: Any, keys: Sequence[RunKey], *__: float) -> list[None]:
        together.append([key.tenant for key in keys])
        return [None] * len(keys)

    monkeypatch.setattr(slot, "do_group", note)
    monkeypatch.setattr(slot, "do_run", lambda runtime, key: note(runtime, [key])[0])
    return together


def failed(errors: Sequence[Exception | None]) -> list[str]:
    """Return the tenants whose runs failed, of one run for each of `TENANTS`."""
    return [tenant for tenant, error in zip(TENANTS, errors, strict=True) if error is not None]


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
