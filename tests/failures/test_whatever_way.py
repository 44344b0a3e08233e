"""In whichever way a record fails, it is in quarantine after a bounded number of tries, and the rest go on.

What ends a process is in `test_runs_that_do_not_end.py` and, with real workers, in `tests/faults/test_deaths.py`.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import logging
import pickle
import resource
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from celery.exceptions import WorkerShutdown
from sqlalchemy import Engine

from taskbridge.declaring.batch import Batch, RetryAfter
from taskbridge.errors import HandlerMistake, InvalidInput, RunFailed
from taskbridge.handlers.journal import journal
from taskbridge.store import record_invoice
from taskbridge.store.documents import decoded
from taskbridge.worker import slot
from tests.failures.drill import BAD, NUMBERS, SOON, Drill
from tests.waiting import wait_until


class Custom(BaseException):
    """An exception that is no Exception."""


class Wordless(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class Causeless(Exception):
    """An error whose class computes what Python's own classes store."""

    @property
    def __cause__(self) -> Any:  # type: ignore[override]
        raise RuntimeError("no cause")


class CauselessGroup(ExceptionGroup[ValueError]):
    @property
    def exceptions(self) -> Any:
        raise RuntimeError("no errors")


class Originless(Exception):
    """As one of SQLAlchemy's, of which we ask the driver's error."""

    @property
    def orig(self) -> Any:
        raise RuntimeError("no origin")


class AttributesOfTheAnswer(Exception):
    """An error whose unknown attributes are fields of an answer, as some clients have it."""

    def __getattr__(self, name: str) -> Any:
        return {"code": 1}[name]


def deep_group() -> BaseException:
    error: Exception = ValueError("at the bottom")
    for _ in range(2_000):
        error = ExceptionGroup("one more", [error])
    return error


class Unpicklable(Exception):
    """As that of an HTTP client, whose request and response are needed to make it."""

    def __init__(self, message: str, *, request: object) -> None:
        super().__init__(message)
        self.request = request


def raising(error: BaseException) -> Callable[[Batch], None]:
    def way(_: Batch) -> None:
        raise error

    return way


def exits(_: Batch) -> None:
    sys.exit(1)


def aborts_its_transaction(batch: Batch) -> None:
    try:
        batch.connection.exec_driver_sql("SELECT 1 / 0")
    except Exception:
        batch.reject(batch[0], "swallowed")


def fails_at_commit(batch: Batch) -> None:
    batch.connection.exec_driver_sql("INSERT INTO parts VALUES (7)")


def commits(batch: Batch) -> None:
    batch.connection.commit()


def commits_behind_our_back(batch: Batch) -> None:
    batch.connection.exec_driver_sql("COMMIT")
    batch.connection.exec_driver_sql("SELECT 1")


def closes(batch: Batch) -> None:
    with batch.connection as connection:
        connection.exec_driver_sql("SELECT 1")


def breaks_its_session(batch: Batch) -> None:
    try:
        batch.connection.exec_driver_sql("SELECT pg_terminate_backend(pg_backend_pid())")
    except Exception:
        logging.getLogger(__name__).info("swallowed")


def is_raised_from_one_without_a_cause(_: Batch) -> None:
    raise ValueError("effect") from Causeless("cause")


def asks_to_wait_and_fails_at_commit(batch: Batch) -> RetryAfter:
    fails_at_commit(batch)
    for record in batch:
        batch.handled(record)
    return RetryAfter(1)


def a_generator(_: Batch) -> Any:
    return (number for number in range(3))


WAYS: dict[str, tuple[Callable[[Batch], Any], str]] = {
    "SystemExit": (exits, "SystemExit: 1"),
    "CancelledError": (raising(asyncio.CancelledError()), "CancelledError: "),
    "KeyboardInterrupt in a worker": (raising(KeyboardInterrupt()), "KeyboardInterrupt: "),
    "WorkerShutdown": (raising(WorkerShutdown("stop")), "WorkerShutdown: stop"),
    "a BaseException of its own": (raising(Custom("stop")), "Custom: stop"),
    "a lone surrogate": (raising(ValueError(json.loads('"\\ud83d!"'))), "ValueError: \\ud83d!"),
    "a NUL": (raising(ValueError("a\0b")), "ValueError: a\\x00b"),
    "10 MB": (raising(ValueError("x" * 10_000_000)), "ValueError: xxx"),
    "a text that raises": (raising(Wordless()), "Wordless: (Wordless, whose str() failed: RuntimeError)"),
    "a cause that raises": (raising(Causeless("x")), "Causeless: x"),
    "a cause whose cause raises": (is_raised_from_one_without_a_cause, "ValueError: effect"),
    "a group whose errors raise": (
        raising(CauselessGroup("x", [ValueError("y")])),
        "CauselessGroup: x (1 sub-exception)",
    ),
    "an origin that raises": (raising(Originless("x")), "Originless: x"),
    "attributes that raise": (raising(AttributesOfTheAnswer("x")), "AttributesOfTheAnswer: x"),
    "a deep group": (raising(deep_group()), "ExceptionGroup: one more"),
    "asks to wait and fails at commit": (asks_to_wait_and_fails_at_commit, "ForeignKeyViolation: "),
    "aborts its transaction": (aborts_its_transaction, "InFailedSqlTransaction: "),
    "fails at commit": (fails_at_commit, "ForeignKeyViolation: "),
    "commits": (commits, "HandlerMistake: the handler committed, rolled back or closed"),
    "commits behind": (commits_behind_our_back, "HandlerMistake: the handler committed, rolled back or closed"),
    "closes": (closes, "HandlerMistake: the handler committed, rolled back or closed"),
    "breaks its session": (breaks_its_session, "PendingRollbackError: "),
    "ConnectionError": (raising(ConnectionError("refused")), "ConnectionError: refused"),
    "a generator": (a_generator, "HandlerMistake: the handler returned an iterator (generator)"),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_record_that_cannot_be_handled_goes_to_quarantine_and_the_rest_go_on(
    drill: Drill, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail, text = WAYS[way]
    if way.startswith("KeyboardInterrupt"):
        # As in a worker, whose own handler of SIGINT stands there.
        monkeypatch.setattr("signal.getsignal", lambda _: None)
    with drill.deployment.engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE whole (id int PRIMARY KEY)")
        connection.exec_driver_sql("CREATE TABLE parts (whole int REFERENCES whole DEFERRABLE INITIALLY DEFERRED)")

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

    drill.handle(handler, max_attempts=2)
    drill.save("acme", *numbers)
    drill.go_on()
    assert drill.states() == {"quarantined": 15, "handled": 25}


def test_the_only_record_of_a_tenant_that_says_downstream_goes_while_others_are_handled(drill: Drill) -> None:
    def handler(batch: Batch) -> None:
        if batch.tenant == "acme":
            raise TimeoutError("no answer")
        journal(batch)

    drill.handle(handler, max_attempts=2)
    drill.save("acme", "a")
    for number in range(10):
        drill.save("other", f"{number}")
        drill.go_on(within_ms=31_000)
    assert drill.states("acme") == {"quarantined": 1}
    assert drill.states("other") == {"handled": 10}
    ((*_, attempts),) = drill.quarantine()
    assert attempts == 8


def test_a_process_that_is_told_to_end_hands_its_batch_over_and_ends(drill: Drill) -> None:
    def interrupted(batch: Batch) -> None:
        if len(drill.calls) == 1:
            raise KeyboardInterrupt
        journal(batch)

    drill.handle(interrupted)
    drill.save("acme", "a")
    message = drill.inline.message()
    assert message is not None
    with pytest.raises(KeyboardInterrupt):
        slot.run_tenant(drill.runtime, *message)
    assert drill.run_one(), "at once"
    assert drill.states() == {"handled": 1}
    assert drill.deployment.rows("SELECT failed_runs FROM taskbridge.sync_cursors") == [(0,)]


def test_a_word_about_a_record_after_the_call_is_refused(drill: Drill) -> None:
    batches: list[Batch] = []
    drill.handle(batches.append)
    drill.save("acme", "a")
    drill.go_on()
    (batch,) = batches
    with pytest.raises(HandlerMistake, match="the batch is over: its handler has returned"):
        batch.reject(batch[0], "too late")
    with pytest.raises(HandlerMistake, match="the batch is over: its handler has returned"):
        batch.handled(batch[0])


# What a worker cannot decode

UNDECODABLE = {
    "nested": "[" * 2_000 + "]" * 2_000,
    "an integer of 5,001 digits": "1e5000",
    "an integer of 4,400 digits": "7" * 4_400,
    "a float that overflows": "1e400, 1" + "0" * 400 + ".5",
}


@pytest.mark.parametrize("what", UNDECODABLE)
def test_a_document_that_cannot_be_decoded_costs_no_other(drill: Drill, what: str) -> None:
    bad = f'{{"a": [{UNDECODABLE[what]}]}}'
    if what == "nested" and decoded(bad)[1] is None:
        pytest.skip("this Python reads so many levels")
    drill.handle(journal)
    with drill.deployment.engine.begin() as connection:
        for number in NUMBERS:
            document = bad if number == BAD else "{}"
            connection.exec_driver_sql(
                "INSERT INTO taskbridge.records (source, tenant, key, document) VALUES ('invoices', 'acme', %s, %s)",
                (number, document),
            )
    drill.deployment.notify_event.delay("acme")
    drill.go_on(steps=20)
    assert drill.states() == {"handled": 19, "quarantined": 1}
    ((_, number, cause, reason, _),) = drill.quarantine()
    assert (number, cause) == (BAD, "rejected")
    assert reason.startswith("the document cannot be decoded: "), reason
    assert len(drill.calls) == 1


def nested(levels: int) -> dict[str, Any]:
    document: dict[str, Any] = {}
    for _ in range(levels - 1):
        document = {"[": document}
    return document


def test_what_no_worker_could_read_is_refused_at_the_producer(drill: Drill) -> None:
    engine = drill.deployment.engine
    assert record_invoice(engine, "acme", "deep", nested(500))
    with pytest.raises(InvalidInput, match="record 'too deep': no worker can read the document: it is nested more"):
        record_invoice(engine, "acme", "too deep", nested(501))
    assert record_invoice(engine, "acme", "wide", {"a": [[]] * 5_000, "b": "[" * 5_000, "c": "7" * 5_000})
    assert record_invoice(engine, "acme", "long", {"a": 10**4_299})
    digits = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)
    try:
        with pytest.raises(InvalidInput, match="an integer of more than 4,300 digits"):
            record_invoice(engine, "acme", "too long", {"a": 10**4_300})
    finally:
        sys.set_int_max_str_digits(digits)
    drill.handle(journal)
    drill.deployment.notify_event.delay("acme")
    drill.go_on()
    assert drill.states() == {"handled": 3}


def test_who_asks_to_wait_beside_a_handler_that_hangs_waits_as_long_as_it_asks(drill: Drill) -> None:
    never = threading.Event()

    def handle(batch: Batch) -> None:
        if batch.tenant == "hangs":
            never.wait(60)
        raise RetryAfter(7)

    drill.handle(handle)
    for tenant in ("asks", "hangs"):
        drill.save(tenant, "1")
    runs = [message.run for message in drill.gate.take(2, 0)[0]]
    with ThreadPoolExecutor() as threads:
        together = threads.submit(slot.run_together, drill.runtime, runs, 0.1)
        try:
            wait_until(lambda: drill.gate.look("invoices", ["asks"])[0].held, "its slot is free")
            (asks,) = drill.gate.look("invoices", ["asks"])
        finally:
            never.set()
        assert together.result() == [None, None]
    assert asks.deadline_ms is not None
    assert asks.deadline_ms - drill.gate.us // 1000 == 7_000


def a_group() -> BaseException:
    return ExceptionGroup("group", [ValueError("x" * 10_000) for _ in range(1_000)])


def a_cause() -> BaseException:
    error = ValueError("effect")
    error.__cause__ = ValueError("x" * 10_000_000)
    return error


def a_note() -> BaseException:
    error = ValueError("noted")
    error.add_note("x" * 10_000_000)
    return error


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("422"), "ValueError: 422"),
        (Unpicklable("422", request=object()), "Unpicklable: 422"),
        (Wordless(), "Wordless: "),
        (ValueError("x" * 10_000_000), "ValueError: xxx"),
        (a_cause(), "ValueError: effect"),
        (a_note(), "ValueError: noted"),
        (a_group(), "ExceptionGroup: group"),
        (MemoryError("full"), "MemoryError: full"),
    ],
    ids=["plain", "unpicklable", "wordless", "10 MB", "a cause of 10 MB", "a note of 10 MB", "a group", "special"],
)
def test_celery_gets_one_exception_with_a_short_text_whatever_the_handler_raises(
    drill: Drill, caplog: pytest.LogCaptureFixture, error: BaseException, text: str
) -> None:
    drill.handle(raising(error))
    drill.save("acme", "1")
    message = drill.inline.message()
    assert message is not None
    with pytest.raises(RunFailed) as raised:
        slot.work(drill.runtime, *message)

    failed = raised.value
    assert str(failed).startswith(f"run of pipeline invoices, tenant 'acme', failed: {text}")
    assert len(str(failed)) <= 1_000
    assert type(pickle.loads(pickle.dumps(failed))) is RunFailed  # noqa: S301 - made here
    # what Celery logs and sends, and what we log
    written = "".join(traceback.format_exception(failed)) + caplog.text
    assert len(written) < 100_000
    assert type(error).__name__ in written
    assert "in way" in written, "where the handler raised it"
    assert failed.__cause__ in (error, None)


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
