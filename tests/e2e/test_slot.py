"""What one worker slot does: short runs share what they ask for, and nobody waits behind a long one."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import FrameType
from typing import Any

import pytest
import redis
from celery import Celery
from psycopg.errors import QueryCanceled
from sqlalchemy import Connection

from taskbridge.common.run_key import RunKey
from taskbridge.declaring.batch import Batch
from taskbridge.declaring.pipeline import Handler, Pipeline, Pipelines
from taskbridge.declaring.policy import LatencyNeutral
from taskbridge.gate import Queue, State
from taskbridge.producing.notify import notify
from taskbridge.running import slot
from taskbridge.store import Claim, CursorLost, Cursors, NoAnswer, Unread, record, record_invoice
from tests.deployment import Deployment
from tests.inline import AT_ONCE, Inline
from tests.waiting import wait_until

TENANTS = ["a", "b", "c", "d"]


@pytest.fixture
def inline(deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> Inline:
    # A slow machine must not make short runs long.
    monkeypatch.setattr(slot, "SLICE", 30.0)
    monkeypatch.setattr(slot, "ADVANCED_WITHIN", 30.0)
    made = Inline(deployment)
    made.runtime.taken_from = frozenset(made.runtime.keys.queues)
    return made


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
    return [message.run for message in inline.runtime.gate.take(most, most)]


def queued(inline: Inline) -> list[str]:
    """Return the tenants of the messages that lie in the queues, the next one first, and leave them there."""
    messages = inline.runtime.gate.take(100, 100)
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

    monkeypatch.setattr(slot, "run_together", note)
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


@pytest.fixture
def threads(inline: Inline) -> Iterator[ThreadPoolExecutor]:  # noqa: ARG001 - it ends before the deployment
    with ThreadPoolExecutor() as pool:
        yield pool


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


@pytest.fixture
def locks(inline: Inline, threads: ThreadPoolExecutor) -> Iterator[Locks]:  # noqa: ARG001 - threads may wait for them
    with inline.deployment.engine.connect() as session:
        yield Locks(session)


@pytest.fixture
def never(threads: ThreadPoolExecutor) -> Iterator[threading.Event]:  # noqa: ARG001 - threads may wait for it
    """What a handler waits for that does not end; it ends with the test."""
    event = threading.Event()
    yield event
    event.set()


def test_a_message_is_followed_by_the_runs_behind_it(inline: Inline) -> None:
    called = note_calls(inline)
    save(inline)
    work(inline)
    assert called == TENANTS
    assert handled(inline) == dict.fromkeys(TENANTS, 1)
    assert not inline.runtime.gate.active("invoices")
    assert queued(inline) == []


def test_the_handlers_of_runs_that_began_together_are_advanced_in_one_commit(inline: Inline) -> None:
    inline.handle(nothing)
    save(inline)
    run_together(inline)
    ids = inline.deployment.rows("SELECT DISTINCT xmin FROM taskbridge.sync_cursors")
    assert len(ids) == 1
    assert handled(inline) == dict.fromkeys(TENANTS, 1)


def test_what_is_done_is_advanced_before_the_next_handler_is_called_after_a_slow_one(
    inline: Inline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slot, "ADVANCED_WITHIN", 0.05)
    seen: list[dict[str, int]] = []

    def handle(batch: Batch) -> None:
        seen.append(handled(inline))
        time.sleep(0.1 if batch.tenant == "b" else 0.0)

    inline.handle(handle)
    save(inline)
    run_together(inline)
    assert seen[1].get("a", 0) == 0, "a and b are advanced together"
    assert {tenant: seen[2][tenant] for tenant in "ab"} == {"a": 1, "b": 1}


def test_one_that_fails_stops_none_and_each_error_is_told_with_its_tenant(
    inline: Inline, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(batch: Batch) -> None:
        if batch.tenant in "ac":
            raise ValueError(f"no {batch.tenant}")

    called = note_calls(inline, fail)
    save(inline)
    quick(inline)
    with pytest.raises(ValueError, match="no a"):
        work(inline)
    assert sorted(called) == TENANTS
    found = inline.runtime.gate.look("invoices", ["a", "c"])
    assert [(status.state, status.held) for status in found] == [(State.WAITING, True)] * 2
    assert {tenant for tenant, records in handled(inline).items() if records} == {"b", "d"}
    (told,) = [record for record in caplog.records if record.name == slot.__name__]
    assert "tenant 'c' failed" in told.getMessage()
    assert told.exc_info is not None
    assert str(told.exc_info[1]) == "no c"


def test_one_that_was_done_elsewhere_is_passed_over(inline: Inline) -> None:
    called = note_calls(inline)
    save(inline, "ab")
    runs = taken(inline)
    slot.run_tenant(inline.runtime, *runs[0])
    slot.run_together(inline.runtime, runs)
    assert called == ["a", "b"]


def test_one_whose_cursor_was_lost_meanwhile_costs_the_others_nothing(inline: Inline) -> None:
    def handle(batch: Batch) -> None:
        if batch.tenant == "b":
            with inline.deployment.engine.begin() as connection:
                connection.exec_driver_sql("UPDATE taskbridge.sync_cursors SET owner = 'z' WHERE tenant = 'b'")

    inline.handle(handle)
    save(inline)
    assert run_together(inline) == [None] * 4
    assert handled(inline) == {"a": 1, "b": 0, "c": 1, "d": 1}


def test_a_claim_that_fails_costs_the_others_nothing(inline: Inline, monkeypatch: pytest.MonkeyPatch) -> None:
    inline.handle(nothing)
    save(inline)
    cursors = inline.runtime.cursors_of("invoices")
    claim = type(cursors).claim

    def failing(self: Any, one: Claim) -> Any:
        if one.key.tenant == "b":
            raise CursorLost
        return claim(self, one)

    monkeypatch.setattr(type(cursors), "claim", failing)
    # As where the exchange breaks: each is then claimed alone.
    monkeypatch.setattr(type(cursors), "_claim_at_once", lambda *_: [None] * 4)
    run_together(inline)
    assert {tenant for tenant, records in handled(inline).items() if records} == {"a", "c", "d"}


IMPATIENT = {"statement_timeout": 0.5}


def save_again(inline: Inline) -> None:
    """Let each tenant have a cursor, and another record."""
    inline.handle(nothing)
    save(inline)
    run_together(inline)
    save(inline, number="2")


@pytest.mark.parametrize("deployment", [IMPATIENT], indirect=True)
def test_a_cursor_that_another_session_has_locked_is_claimed_by_nobody_and_the_others_are(
    inline: Inline, locks: Locks
) -> None:
    save_again(inline)
    locks.take("b")
    assert failed(run_together(inline)) == ["b"]
    assert handled(inline) == {"a": 2, "b": 1, "c": 2, "d": 2}


def test_runs_whose_cursors_are_locked_come_after_the_others(inline: Inline, locks: Locks) -> None:
    def release(batch: Batch) -> None:
        if batch.tenant == "d":
            locks.release()

    save_again(inline)
    called = note_calls(inline, release)
    locks.take("a", "b")
    assert run_together(inline) == [None] * 4
    assert called == ["c", "d", "a", "b"]


@pytest.mark.parametrize("deployment", [{"statement_timeout": 2.0, "run_budget": 0.2}], indirect=True)
def test_only_one_run_waits_for_a_locked_cursor(inline: Inline, locks: Locks) -> None:
    save_again(inline)
    locks.take("a", "b")
    assert failed(run_together(inline, 0.05)) == ["a"]
    assert queued(inline) == ["b"]
    assert handled(inline) == {"a": 1, "b": 1, "c": 2, "d": 2}


def test_a_locked_cursor_of_one_source_keeps_no_run_of_another(
    inline: Inline, threads: ThreadPoolExecutor, locks: Locks
) -> None:
    called: list[tuple[str, str]] = []
    two_pipelines(inline, lambda batch: called.append((batch.pipeline, batch.tenant)))
    save_orders(inline, "bc")
    save(inline, "b")
    run_together(inline)
    called.clear()
    save_orders(inline, "bc")
    save(inline, "b", number="2")
    locks.take("b")
    errors = run_in_a_thread(inline, threads, 0.05)
    wait_until(lambda: sorted(called) == [("orders", "b"), ("orders", "c")], "the others are called")
    wait_until(lambda: not inline.runtime.gate.active("orders"), "the others have ended")
    locks.release()
    assert errors.result() == [None] * 3
    assert called[-1] == ("invoices", "b")


def test_where_postgres_does_not_answer_one_run_waits_and_the_others_are_given_back(
    inline: Inline, monkeypatch: pytest.MonkeyPatch
) -> None:
    inline.handle(nothing)
    save(inline)

    def silent(*_: Any) -> None:
        raise NoAnswer("Postgres has not answered")

    monkeypatch.setattr(Cursors, "_claim_at_once", silent)
    errors = run_together(inline)
    assert [type(error) for error in errors] == [NoAnswer, type(None), type(None), type(None)]
    assert sorted(queued(inline)) == ["b", "c", "d"]


@pytest.mark.parametrize("deployment", [{"run_budget": 0.2}], indirect=True)
def test_a_document_that_takes_too_long_keeps_no_other_run_waiting(
    inline: Inline, monkeypatch: pytest.MonkeyPatch
) -> None:
    inline.handle(nothing)
    save(inline)
    tried: list[str] = []

    def slow(_: Any, claim: Claim) -> None:
        tried.append(claim.key.tenant)
        wait_until(lambda: queued(inline) == ["b", "c", "d"], "the others are given back")
        raise Unread(QueryCanceled("statement timeout"), claim.limit, bisecting=True)

    monkeypatch.setattr(Cursors, "_claim_at_once", lambda *_: [None] * 4)
    monkeypatch.setattr(Cursors, "claim", slow)
    run_together(inline, 0.05)
    assert tried == ["a"]


@pytest.mark.parametrize("deployment", [IMPATIENT], indirect=True)
def test_a_claim_that_takes_too_long_is_no_fault_of_those_that_began_with_it(inline: Inline) -> None:
    called = note_calls(inline)
    with inline.deployment.engine.begin() as connection:
        connection.exec_driver_sql(
            "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN IF new.tenant = 'c' THEN PERFORM pg_sleep(30); END IF; RETURN new; END $$"
        )
        connection.exec_driver_sql(
            "CREATE TRIGGER slow BEFORE INSERT ON taskbridge.sync_cursors FOR EACH ROW EXECUTE FUNCTION slow()"
        )
    save(inline)
    assert failed(run_together(inline)) == ["c"]
    assert called == ["a", "b", "d"]
    assert handled(inline) == {"a": 1, "b": 1, "d": 1}


def test_runs_whose_cursors_nobody_locked_are_settled_before_one_waits_for_a_lock(
    inline: Inline, threads: ThreadPoolExecutor, locks: Locks
) -> None:
    def handle(batch: Batch) -> None:
        if batch.tenant == "d":
            locks.take("a", "b")

    inline.handle(handle)
    save(inline)
    errors = run_in_a_thread(inline, threads)
    wait_until(lambda: sorted(inline.runtime.gate.active("invoices")) == ["a", "b"], "c and d have ended")
    locks.release()
    assert errors.result() == [None] * 4
    assert handled(inline) == dict.fromkeys(TENANTS, 1)


@pytest.mark.parametrize("deployment", [IMPATIENT], indirect=True)
def test_a_cursor_that_gets_locked_before_the_advance_keeps_none_of_the_others(inline: Inline, locks: Locks) -> None:
    def handle(batch: Batch) -> None:
        if batch.tenant == "b":
            locks.take("b")

    inline.handle(handle)
    save(inline)
    assert failed(run_together(inline)) == ["b"]
    assert handled(inline) == {"a": 1, "b": 0, "c": 1, "d": 1}


def test_runs_of_two_pipelines_over_two_sources_begin_together(inline: Inline) -> None:
    called: list[tuple[str, str, str]] = []
    two_pipelines(inline, lambda batch: called.append((batch.pipeline, batch.tenant, batch[0].external_id)))
    save(inline, "ab", number="1")
    save_orders(inline, "ab")
    errors = run_together(inline)
    assert errors == [None] * 4
    expected = [(name, tenant, "1") for name in ("invoices", "orders") for tenant in ("a", "b")]
    assert sorted(called) == expected
    cursors = inline.deployment.rows("SELECT pipeline, tenant, records FROM taskbridge.sync_cursors")
    assert sorted(tuple(row) for row in cursors) == [(name, tenant, 1) for name, tenant, _ in expected]
    assert inline.runtime.gate.active("invoices") == inline.runtime.gate.active("orders") == []


def test_runs_that_end_before_they_claim_are_settled(inline: Inline, monkeypatch: pytest.MonkeyPatch) -> None:
    inline.handle(nothing)
    save(inline, "ab")

    def away(_: Any) -> None:
        raise ConnectionError("Postgres is away")

    monkeypatch.setattr(inline.runtime, "know", away)
    first, second = run_together(inline)
    assert isinstance(first, ConnectionError)
    assert isinstance(second, ConnectionError)
    found = inline.runtime.gate.look("invoices", ["a", "b"])
    assert [(status.state, status.held) for status in found] == [(State.WAITING, True)] * 2


def test_one_batch_of_each_is_delivered_and_the_rest_comes_in_its_turn(inline: Inline) -> None:
    sizes: list[tuple[str, int]] = []
    inline.handle(lambda batch: sizes.append((batch.tenant, len(batch))), batch_size=2)
    for number in range(5):
        record_invoice(inline.deployment.engine, "a", str(number), {})
    inline.deployment.notify_event.delay("a")
    save(inline, "bc")
    run_together(inline)
    assert sizes == [("a", 2), ("b", 1), ("c", 1)]
    assert queued(inline) == ["a"]
    inline.run_all()
    assert sum(size for tenant, size in sizes if tenant == "a") == 5


def test_a_slow_handler_is_never_taken_along(inline: Inline, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slot, "SLICE", 0.05)
    inline.handle(nothing)
    inline.runtime.paces["invoices"].note(1, 0.2)
    save(inline)
    do_no_run(monkeypatch)
    work(inline)
    assert queued(inline) == TENANTS[1:], "each in its place"


def test_a_handler_that_was_slow_to_fail_is_not_taken_along(inline: Inline, monkeypatch: pytest.MonkeyPatch) -> None:
    def handle(_: Batch) -> None:
        time.sleep(0.1)
        raise TimeoutError

    quick(inline)
    inline.handle(handle)
    save(inline)
    first = taken(inline, 1)[0]
    monkeypatch.setattr(slot, "SLICE", 0.1)
    with pytest.raises(TimeoutError):
        slot.work(inline.runtime, *first)
    monkeypatch.setattr(slot, "SLICE", 0.09)
    slot.work(inline.runtime, "invoices", "lone", "token")
    assert queued(inline) == TENANTS[1:]
    inline.handle(nothing)
    slot.run_together(inline.runtime, taken(inline, 1))
    assert (inline.runtime.paces["invoices"].small_call or 1) < 0.09


def test_only_so_many_are_taken_as_are_done_within_the_slice(inline: Inline, monkeypatch: pytest.MonkeyPatch) -> None:
    together = do_no_run(monkeypatch)
    monkeypatch.setattr(slot, "SLICE", 2.5)
    inline.runtime.paces["invoices"].note(1, 1.0)
    save(inline)
    work(inline)
    # Three of a second each do not fit into two and a half. The clock hardly moves: so there is a third exchange.
    assert together[:2] == [["a"], ["b", "c"]]


def test_who_waits_behind_a_handler_that_was_slower_than_expected_is_given_back(
    inline: Inline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slot, "SLICE", 1.0)
    called = note_calls(inline, lambda batch: time.sleep(1.2 if batch.tenant == "b" else 0.0))
    save(inline)
    quick(inline)
    work(inline)
    assert called == ["a", "b"]
    assert handled(inline) == {"a": 1, "b": 1, "c": 0, "d": 0}
    assert sorted(queued(inline)) == ["c", "d"]
    inline.run_all()
    assert sorted(called) == TENANTS


def test_a_handler_that_never_ends_keeps_nobody_waiting(
    inline: Inline, monkeypatch: pytest.MonkeyPatch, threads: ThreadPoolExecutor, never: threading.Event
) -> None:
    def hang(batch: Batch) -> None:
        if batch.tenant == "c":
            never.wait()

    monkeypatch.setattr(slot, "SLICE", 1.0)
    gate = inline.runtime.gate
    called = note_calls(inline, hang, max_runs=5)
    save(inline, "abcde")
    quick(inline)
    working = threads.submit(work, inline)
    # b is done, and d and e have begun: the one advances, and the others are for another slot.
    wait_until(lambda: sorted(gate.active("invoices")) == ["c", "d", "e"], "b has ended")
    wait_until(lambda: queued(inline) == ["d", "e"], "d and e are given back, in their order")
    assert [status.state for status in gate.look("invoices", list("abcde"))] == [
        State.IDLE,
        State.IDLE,
        State.RUNNING,
        State.QUEUED,
        State.QUEUED,
    ]
    inline.run_all()
    assert called == list("abcde")
    never.set()
    working.result()
    assert handled(inline) == dict.fromkeys("abcde", 1)
    assert not gate.active("invoices")


@pytest.mark.parametrize("deployment", [{"run_budget": 0.5}], indirect=True)
def test_who_failed_and_waits_behind_a_handler_that_hangs_waits_for_its_back_off_elsewhere(
    inline: Inline, threads: ThreadPoolExecutor, never: threading.Event
) -> None:
    def handle(batch: Batch) -> None:
        if batch.tenant == "d":
            never.wait()
        raise ValueError("no")

    inline.handle(handle)
    save(inline)
    errors = run_in_a_thread(inline, threads, 0.2)
    gate = inline.runtime.gate
    wait_until(lambda: all(status.held for status in gate.look("invoices", ["a", "b", "c"])), "their slot is free")
    never.set()
    assert [str(error) for error in errors.result()] == ["no"] * 4


def test_who_is_given_back_does_not_wait_for_a_cursor_that_got_locked(
    inline: Inline, threads: ThreadPoolExecutor, locks: Locks, never: threading.Event
) -> None:
    def handle(batch: Batch) -> None:
        if batch.tenant == "a":
            locks.take("a")
        elif batch.tenant == "b":
            never.wait()

    inline.handle(handle)
    save(inline)
    errors = run_in_a_thread(inline, threads, 0.2)
    wait_until(lambda: queued(inline) == ["c", "d"], "they are given back")
    locks.release()
    never.set()
    assert errors.result() == [None] * 4
    assert handled(inline)["b"] == 1


def test_a_run_that_ended_before_its_claim_does_not_wait_for_a_handler(
    inline: Inline, monkeypatch: pytest.MonkeyPatch, threads: ThreadPoolExecutor, never: threading.Event
) -> None:
    know = inline.runtime.know
    known: list[Pipeline] = []

    def fail_once(pipeline: Pipeline) -> None:
        known.append(pipeline)
        if len(known) == 1:
            raise ConnectionError("Postgres is away")
        know(pipeline)

    def hang(_: Batch) -> None:
        never.wait()

    monkeypatch.setattr(inline.runtime, "know", fail_once)
    inline.handle(hang)
    save(inline, "ab")
    errors = run_in_a_thread(inline, threads, 0.2)
    wait_until(lambda: inline.runtime.gate.look("invoices", ["a"])[0].held, "it has ended")
    never.set()
    assert [type(error) for error in errors.result()] == [ConnectionError, type(None)]


def test_a_process_that_is_told_to_end_waits_for_the_thread_that_finishes_its_runs(
    inline: Inline, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, ended, main = threading.Event(), threading.Event(), threading.get_ident()
    settle = inline.runtime.gate.settle_many

    def slowly(*args: Any, **options: Any) -> Any:
        if threading.current_thread().name != "taskbridge-relief":
            return settle(*args, **options)
        slow.set()
        time.sleep(1.0)
        found = settle(*args, **options)
        ended.set()
        return found

    def stop(_: int, __: FrameType | None) -> None:
        raise SystemExit("told to end")

    def tell() -> None:
        slow.wait()
        time.sleep(0.3)  # by now the handler has returned
        signal.pthread_kill(main, signal.SIGUSR1)

    def handle(batch: Batch) -> None:
        if batch.tenant == "b":
            slow.wait(10)

    monkeypatch.setattr(inline.runtime.gate, "settle_many", slowly)
    before = signal.signal(signal.SIGUSR1, stop)
    try:
        inline.handle(handle)
        save(inline)
        threading.Thread(target=tell).start()
        with pytest.raises(SystemExit):
            run_together(inline, 0.2)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert ended.is_set()
    assert handled(inline)["a"] == 1
    assert set(queued(inline)) >= {"c", "d"}


def test_a_handler_that_nobody_knows_is_not_taken_along(inline: Inline, monkeypatch: pytest.MonkeyPatch) -> None:
    save(inline)
    do_no_run(monkeypatch)
    work(inline)
    assert queued(inline) == TENANTS[1:]


def test_a_redis_that_goes_away_meanwhile_says_nothing_of_the_run_that_has_ended(
    inline: Inline, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def away(*_: int) -> None:
        raise redis.ConnectionError("gone")

    def handle(batch: Batch) -> None:
        if batch.tenant == "b":
            raise ValueError("its own")

    inline.handle(handle)
    save(inline)
    first, second = taken(inline, 2)
    monkeypatch.setattr(inline.runtime.gate, "take", away)
    slot.work(inline.runtime, *first)
    with pytest.raises(ValueError, match="its own"):
        slot.work(inline.runtime, *second)
    assert handled(inline)["a"] == 1
    assert caplog.text.count("their deadlines publish them again: ConnectionError: gone") == 2


def test_a_worker_that_stops_leaves_the_rest_to_another(inline: Inline, monkeypatch: pytest.MonkeyPatch) -> None:
    inline.handle(lambda _: monkeypatch.setattr(slot, "is_stopping", lambda: True))
    save(inline)
    quick(inline)
    work(inline)
    assert queued(inline) == TENANTS[1:]


def test_first_events_are_taken_before_continuations_and_nothing_from_a_queue_that_is_not_served(
    inline: Inline, monkeypatch: pytest.MonkeyPatch
) -> None:
    redis = inline.deployment.redis
    save(inline)
    redis.rpoplpush(Queue.FIRST.value, Queue.NEXT.value)
    assert queued(inline) == ["b", "c", "d", "a"]
    inline.runtime.taken_from = frozenset({Queue.NEXT.value})
    inline.handle(nothing)
    quick(inline)
    together = do_no_run(monkeypatch)
    slot.work(inline.runtime, "invoices", "lone", "token")
    assert together == [["lone"], ["a"]]
    assert queued(inline) == ["b", "c", "d"]


def test_a_message_that_is_no_runs_stays_where_it_is(inline: Inline) -> None:
    with Celery(broker=inline.deployment.settings.redis_url, set_as_current=False) as foreign:
        foreign.send_task("taskbridge.notify_event", ['"task": "taskbridge.run"'], queue=Queue.FIRST.value)
    save(inline, "a")
    assert queued(inline) == []
    assert inline.deployment.redis.llen(Queue.FIRST.value) == 2


def test_the_process_is_told_to_end_while_others_wait(inline: Inline) -> None:
    def interrupt(batch: Batch) -> None:
        if batch.tenant == "b":
            raise KeyboardInterrupt

    called = note_calls(inline, interrupt)
    save(inline)
    with pytest.raises(KeyboardInterrupt):
        run_together(inline)
    # What is done is done, and the rest is for another worker at once.
    assert handled(inline) == {"a": 1, "b": 0, "c": 0, "d": 0}
    assert called == ["a", "b"]
    assert sorted(queued(inline)) == ["b", "c", "d"]


@pytest.mark.e2e
@pytest.mark.parametrize("pool", ["prefork", pytest.param("threads", marks=pytest.mark.slow)])
def test_a_storm_of_first_events_is_handled_once_each(deployment: Deployment, pool: str) -> None:
    tenants = [f"tenant {at}" for at in range(300)]
    with deployment.worker("--pool", pool):
        for tenant in tenants:
            deployment.save(tenant, "1", notify=False)
        deployment.gate.notify_many([("invoices", tenant, LatencyNeutral().spacing) for tenant in tenants])
        deployment.wait_until_idle(30)
    assert sorted(deployment.deliveries()) == sorted((tenant, "1") for tenant in tenants)
