"""While others are handled, a record that fails in whichever way is in quarantine after a bounded number of attempts.

What ends a process is in `test_deaths.py` and, with real workers, in `tests/faults/test_workers.py`.
"""

from __future__ import annotations

import asyncio
import ctypes
import functools
import gc
import json
import resource
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from celery.app.trace import trace_task
from celery.exceptions import SoftTimeLimitExceeded
from sqlalchemy import Engine

from taskbridge.declaring.batch import Batch, RetryAfter
from taskbridge.declaring.pipeline import Pipeline
from taskbridge.declaring.policy import LatencyNeutral
from taskbridge.errors import InvalidInput, InvalidPolicy
from taskbridge.gate.message import RUN_TASK
from taskbridge.handlers.journal import journal
from taskbridge.store import record_invoice
from taskbridge.store.documents import decoded
from tests.failures.drill import BAD, NUMBERS, SOON, Drill


class Custom(BaseException):
    """An exception that is no Exception."""


class Hostile(ExceptionGroup[ValueError]):
    """An error of which nothing can be asked."""

    def __getattribute__(self, name: str) -> Any:
        if name in ("__cause__", "exceptions", "orig", "code"):
            raise RuntimeError("no answer")
        return super().__getattribute__(name)

    def __str__(self) -> str:
        raise RuntimeError("no words")


def deep_group() -> BaseException:
    error: Exception = ValueError("at the bottom")
    for _ in range(2_000):
        error = ExceptionGroup("one more", [error])
    return error


def raising(error: BaseException) -> Callable[[Batch], None]:
    def way(_: Batch) -> None:
        raise error

    return way


def raising_in_a_coroutine(error: BaseException, *, in_a_task: bool = False) -> Callable[[Batch], Any]:
    async def raises() -> None:
        raise error

    async def way(_: Batch) -> None:
        await (asyncio.create_task(raises()) if in_a_task else raises())

    return way


def executes(*statements: str, swallows: bool = False) -> Callable[[Batch], None]:
    """Return a handler that executes statements; or one that catches their errors, and rejects its record."""

    def way(batch: Batch) -> None:
        try:
            for statement in statements:
                batch.connection.exec_driver_sql(statement)
        except Exception:
            if not swallows:
                raise
            batch.reject(batch[0], "swallowed")

    return way


fails_at_commit = executes("INSERT INTO parts VALUES (7)")


def commits(batch: Batch) -> None:
    batch.connection.commit()


def closes(batch: Batch) -> None:
    with batch.connection as connection:
        connection.exec_driver_sql("SELECT 1")


def asks_to_wait_and_fails_at_commit(batch: Batch) -> RetryAfter:
    fails_at_commit(batch)
    for record in batch:
        batch.handled(record)
    return RetryAfter(1)


def a_generator(_: Batch) -> Any:
    return (number for number in range(3))


WAYS: dict[str, tuple[Callable[[Batch], Any], str]] = {
    "SystemExit": (raising(SystemExit(1)), "SystemExit: 1"),
    "SystemExit in a coroutine": (raising_in_a_coroutine(SystemExit(3)), "SystemExit: 3"),
    "SystemExit in a task": (raising_in_a_coroutine(SystemExit(3), in_a_task=True), "SystemExit: 3"),
    "CancelledError": (raising(asyncio.CancelledError()), "CancelledError: "),
    "CancelledError in a coroutine": (raising_in_a_coroutine(asyncio.CancelledError()), "CancelledError: "),
    "a BaseException of its own": (raising(Custom("stop")), "Custom: stop"),
    "a lone surrogate": (raising(ValueError(json.loads('"\\ud83d!"'))), "ValueError: \\ud83d!"),
    "a NUL": (raising(ValueError("a\0b")), "ValueError: a\\x00b"),
    "10 MB": (raising(ValueError("x" * 10_000_000)), "ValueError: xxx"),
    "an error that answers nothing": (
        raising(Hostile("x", [ValueError("y")])),
        "Hostile: (Hostile, whose str() failed: RuntimeError)",
    ),
    "a deep group": (raising(deep_group()), "ExceptionGroup: one more"),
    "asks to wait and fails at commit": (asks_to_wait_and_fails_at_commit, "ForeignKeyViolation: "),
    "aborts its transaction": (executes("SELECT 1 / 0", swallows=True), "InFailedSqlTransaction: "),
    "fails at commit": (fails_at_commit, "ForeignKeyViolation: "),
    "commits": (commits, "HandlerMistake: the handler committed, rolled back or closed"),
    "commits behind": (executes("COMMIT", "SELECT 1"), "HandlerMistake: the handler committed, rolled back or closed"),
    "closes": (closes, "HandlerMistake: the handler committed, rolled back or closed"),
    "breaks its session": (
        executes("SELECT pg_terminate_backend(pg_backend_pid())", swallows=True),
        "PendingRollbackError: ",
    ),
    "ConnectionError": (raising(ConnectionError("refused")), "ConnectionError: refused"),
    "a generator": (a_generator, "HandlerMistake: the handler returned an iterator (generator)"),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_record_that_cannot_be_handled_goes_to_quarantine_and_the_rest_go_on(drill: Drill, way: str) -> None:
    fail, text = WAYS[way]
    drill.deployment.execute("CREATE TABLE whole (id int PRIMARY KEY)")
    drill.deployment.execute("CREATE TABLE parts (whole int REFERENCES whole DEFERRABLE INITIALLY DEFERRED)")

    def handler(batch: Batch) -> Any:
        taken = [record for record in batch if record.external_id != BAD]
        if len(taken) == len(batch):
            return journal(batch)
        return fail(batch)

    drill.handle(handler, max_attempts=3)
    numbers = NUMBERS[4:10]
    drill.save("acme", *numbers)
    drill.go_on(steps=200)

    assert drill.states() == {"handled": 5, "quarantined": 1}
    ((tenant, number, cause, reason, attempts),) = drill.quarantine()
    assert (tenant, number, cause) == ("acme", BAD, "failed")
    assert reason.startswith(text), reason
    assert len(reason) <= 2_000
    assert attempts >= 3
    assert len(drill.calls) < 30
    assert sorted(drill.deployment.deliveries()) == [("acme", number) for number in numbers if number != BAD]
    assert drill.circuit().opened == 0
    assert drill.standing() == []


def test_a_tenant_whose_first_records_are_all_bad_gets_to_the_rest(drill: Drill) -> None:
    numbers = [f"{number:02}" for number in range(40)]

    def handler(batch: Batch) -> None:
        if any(record.external_id < "15" for record in batch):
            raise ValueError("bad")
        journal(batch)

    drill.deliver(handler, *numbers, max_attempts=2)
    assert drill.states() == {"quarantined": 15, "handled": 25}


# What a worker cannot decode

UNDECODABLE = {
    "an integer of 5,001 digits": "1e5000",
    "an integer of 4,400 digits": "7" * 4_400,
    "a float that overflows": "1e400, 1" + "0" * 400 + ".5",
    "nested": "[" * 2_000 + "]" * 2_000,
}


def test_documents_that_cannot_be_decoded_cost_no_other(drill: Drill) -> None:
    bad = {what: f'{{"a": [{value}]}}' for what, value in UNDECODABLE.items()}
    if decoded(bad["nested"])[1] is not None:  # this Python reads so many levels
        del bad["nested"]
    drill.handle(journal)
    with drill.deployment.engine.begin() as connection:
        for number in (*NUMBERS, *bad):
            connection.exec_driver_sql(
                "INSERT INTO taskbridge.records (source, tenant, key, document) VALUES ('invoices', 'acme', %s, %s)",
                (number, bad.get(number, "{}")),
            )
    drill.deployment.notify_event.delay("acme")
    drill.go_on(steps=20)
    assert drill.states() == {"handled": 20, "quarantined": len(bad)}
    for _, number, cause, reason, _ in drill.quarantine():
        assert (number in bad, cause) == (True, "rejected")
        assert reason.startswith("the document cannot be decoded: "), reason
    assert len(drill.calls) == 1


def test_what_no_worker_could_read_is_refused_at_the_producer(drill: Drill) -> None:
    engine = drill.deployment.engine
    nested: dict[str, Any] = {}
    for _ in range(499):
        nested = {"[": nested}
    assert record_invoice(engine, "acme", "deep", nested)
    with pytest.raises(InvalidInput, match="record 'too deep': no worker can read the document: it is nested more"):
        record_invoice(engine, "acme", "too deep", {"[": nested})
    assert record_invoice(engine, "acme", "wide", {"a": [[]] * 5_000, "b": "[" * 5_000, "c": "7" * 5_000})
    assert record_invoice(engine, "acme", "long", {"a": 10**4_299})
    drill.handle(journal)
    drill.deployment.notify_event.delay("acme")
    drill.go_on()
    assert drill.states() == {"handled": 3}


def test_what_a_failed_handler_used_stays_in_memory(drill: Drill) -> None:
    """Cycles are only found after hundreds of failures, each of which may hold a batch of large documents."""

    class Used:
        pass

    left: list[weakref.ref[Used]] = []

    def fails(_: Batch) -> None:
        used = Used()
        left.append(weakref.ref(used))
        try:
            raise KeyError("cause")
        except KeyError as error:
            raise ValueError("effect") from error

    drill.handle(fails)
    drill.save("acme", "1")
    message, app = drill.inline.message(), drill.deployment.app
    assert message is not None
    gc.disable()
    try:
        trace_task(app.tasks[RUN_TASK], "an id", message, {}, app=app)
        assert [reference() for reference in left] == [None]
    finally:
        gc.enable()


M_MMAP_THRESHOLD = -3
"""Of mallopt(3)."""


@contextmanager
def memory_left(count: int) -> Iterator[None]:
    """Let this process take so many bytes more at the most."""
    libc = ctypes.CDLL(None)
    # What earlier tests freed would serve: large blocks are given back to the system, now and from now on.
    libc.mallopt(M_MMAP_THRESHOLD, 1_000_000)
    libc.malloc_trim(0)
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    _, hard = before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (size + count, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def insert_long(engine: Engine, first: int, last: int, length: int) -> None:
    with engine.begin() as connection:
        connection.exec_driver_sql(
            "INSERT INTO taskbridge.records (source, tenant, key, document) "
            "SELECT 'invoices', 'acme', n::text, jsonb_build_object('a', repeat('x', %s::int)) "
            "FROM generate_series(%s::int, %s::int) n",
            (length, first, last),
        )


@SOON
def test_a_read_that_takes_too_long_is_written_down_for_a_new_tenant_too_and_the_next_is_smaller(drill: Drill) -> None:
    drill.handle(journal, batch_size=80)
    drill.save("acme", *map(str, range(200)))
    with drill.deployment.engine.begin() as connection:
        connection.exec_driver_sql("LOCK TABLE taskbridge.records IN ACCESS EXCLUSIVE MODE")
        drill.go_on(until=lambda: len(drill.times) == 2)
        ((failures, error, limit, attempts, runs),) = drill.deployment.rows(
            "SELECT failures, last_error, batch_limit, attempts, runs FROM taskbridge.sync_cursors"
        )
    assert (failures, limit, attempts, runs) == (2, 20, 0, 2)
    assert "could not be read: QueryCanceled" in error
    drill.go_on()
    assert drill.states() == {"handled": 200}
    assert [len(numbers) for _, numbers in drill.calls[:3]] == [20, 40, 80], "it grows again"


def test_a_record_that_cannot_be_read_alone_goes_to_quarantine_and_its_tenant_goes_on(drill: Drill) -> None:
    drill.handle(journal, max_attempts=2)
    insert_long(drill.deployment.engine, 1, 1, 40_000_000)
    insert_long(drill.deployment.engine, 2, 6, 10)
    drill.deployment.notify_event.delay("acme")
    with memory_left(86_000_000):
        drill.go_on(steps=40)
    assert drill.states() == {"handled": 5, "quarantined": 1}
    ((_, number, cause, reason, attempts),) = drill.quarantine()
    assert (number, cause, attempts) == ("1", "failed", 2)
    assert "could not be read" in reason


class Handler:
    def __init__(self) -> None:
        self.loops: set[int] = set()

    async def __call__(self, batch: Batch) -> None:
        await asyncio.sleep(0)
        self.loops.add(id(asyncio.get_running_loop()))
        journal(batch)


def test_coroutines_are_run_on_the_one_loop_of_the_process(drill: Drill) -> None:
    handler = Handler()
    for number in "12":
        drill.deliver(handler, number)
    assert drill.deployment.deliveries() == [("acme", "1"), ("acme", "2")]
    assert len(handler.loops) == 1


def test_a_coroutine_is_cancelled_at_its_soft_time_limit_also_outside_of_the_main_thread(drill: Drill) -> None:
    ended: list[str] = []

    async def handler(_: Batch) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            # Longer than a handler that is no coroutine has before it is interrupted again.
            await asyncio.sleep(1.2)
            ended.append("cancelled")

    drill.handle(handler, soft_time_limit=0.1)
    drill.save("acme", "a")
    thread = threading.Thread(target=drill.run_one)
    thread.start()
    thread.join(timeout=30)
    assert ended == ["cancelled"]
    assert [type(error) for error in drill.errors] == [SoftTimeLimitExceeded]


def generator(batch: Batch) -> Iterator[Batch]:
    yield batch


async def async_generator(batch: Batch) -> AsyncIterator[Batch]:
    yield batch


@pytest.mark.parametrize(
    "handler", [generator, async_generator, functools.partial(generator)], ids=["plain", "async", "partial"]
)
def test_a_generator_function_is_refused_at_its_declaration(handler: Any) -> None:
    with pytest.raises(InvalidPolicy, match=r"pipeline invoices: the handler .* is a generator function"):
        Pipeline("invoices", handler, LatencyNeutral(), 500)
