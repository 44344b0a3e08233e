"""Handlers that take too long, and sessions that fall silent: they hold no session, no record and no slot for ever."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from contextlib import suppress

import pytest
from celery.exceptions import SoftTimeLimitExceeded

from taskbridge.declaring.batch import Batch
from taskbridge.declaring.pipeline import Handler
from taskbridge.handlers.journal import journal
from taskbridge.process import event_loop
from taskbridge.process.event_loop import EventLoop
from taskbridge.store import connect
from tests.failures.drill import Drill
from tests.waiting import taking_at_most

AT_WORK = (
    "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND state = 'active' "
    "AND query LIKE '%%pg_sleep(%%' AND pid <> pg_backend_pid()"
)


@pytest.mark.parametrize("deployment", [{"transaction_timeout": 1.0}], indirect=True)
def test_locks_of_an_interrupted_statement_keep_no_other_record_from_being_tried(drill: Drill) -> None:
    drill.deployment.execute("CREATE TABLE totals (tenant text PRIMARY KEY, n integer)")
    drill.deployment.execute("INSERT INTO totals VALUES ('acme', 0)")
    own = connect(drill.deployment.settings.postgres_url, statement_timeout=2.0)

    def count_then_sleep_over_a(batch: Batch) -> None:
        count = "UPDATE totals SET n = n + 1 WHERE tenant = 'acme'"
        if any(record.external_id == "a" for record in batch):
            batch.connection.exec_driver_sql(count)
            batch.connection.exec_driver_sql("SELECT pg_sleep(60)")
        else:
            with own.begin() as connection:
                connection.exec_driver_sql(count)

    drill.deliver(count_then_sleep_over_a, "a", "b", "c", max_attempts=2)
    own.dispose()
    assert drill.states() == {"handled": 2, "quarantined": 1}
    assert [number for _, number, *_ in drill.quarantine()] == ["a"]
    assert drill.deployment.rows(AT_WORK) == []


def sleep(batch: Batch) -> None:
    batch.connection.exec_driver_sql("SELECT pg_sleep(60)")


def sleep_and_tell(batch: Batch) -> None:
    try:
        sleep(batch)
    except SoftTimeLimitExceeded as error:
        raise ValueError("too slow") from error


def end_its_session(batch: Batch) -> None:
    batch.connection.exec_driver_sql("SELECT pg_terminate_backend(pg_backend_pid())")


@pytest.mark.parametrize(
    ("deployment", "handler", "limit"),
    [
        ({}, sleep, 0.1),
        ({}, sleep_and_tell, 0.1),
        ({"transaction_timeout": 1.0}, sleep, None),
        ({}, end_its_session, None),
    ],
    ids=["time limit", "error of its own", "time-out", "session"],
    indirect=["deployment"],
)
def test_a_record_that_never_gets_an_answer_goes_to_quarantine_also_where_it_is_the_only_one(
    drill: Drill, handler: Handler, limit: float | None
) -> None:
    drill.deliver(handler, "a", max_attempts=1, soft_time_limit=limit)
    assert drill.states() == {"quarantined": 1}
    assert len(drill.calls) == 4


def test_a_handler_that_catches_its_time_limit_and_goes_on_is_stopped_all_the_same(drill: Drill) -> None:
    took = []

    def handler(batch: Batch) -> None:
        began = time.monotonic()
        try:
            for record in batch:
                try:
                    time.sleep(30)
                except Exception as error:
                    batch.reject(record, str(error))
        finally:
            took.append(time.monotonic() - began)

    drill.deliver(handler, "a", "b", "c", soft_time_limit=0.1, max_attempts=1)
    assert max(took) < 20
    assert drill.states() == {"quarantined": 3}


def test_a_coroutine_that_does_not_end_when_it_is_cancelled_holds_no_run(
    drill: Drill, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_loop, "CANCEL_TIMEOUT", 1.0)

    async def handler(batch: Batch) -> None:
        while batch[0].external_id == "endless":
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                continue
        journal(batch)

    drill.handle(handler, soft_time_limit=0.1, max_attempts=1)
    drill.save("acme", "endless")
    with taking_at_most(30):
        assert drill.run_one()
    drill.save("other", "ends")
    drill.go_on(lambda: drill.states("other")["handled"] == 1, steps=20)
    assert drill.states("other") == {"handled": 1}


def test_a_record_whose_handler_could_not_begin_is_not_to_blame(drill: Drill) -> None:
    blocked, released = threading.Event(), threading.Event()

    async def blocks() -> None:
        blocked.set()
        released.wait(20)

    async def handler(batch: Batch) -> None:
        journal(batch)

    blocking = threading.Thread(target=drill.runtime.event_loop.run, args=(blocks(),))
    blocking.start()
    assert blocked.wait(30)
    drill.handle(handler, soft_time_limit=0.2, max_attempts=1)
    drill.save("acme", "one", "two")
    drill.go_on(lambda: drill.states() == {"handled": 2}, steps=20)
    assert [ids for _, ids in drill.calls] == [["one", "two"]] * 2, "the whole batch came again, once"
    assert drill.errors == []
    released.set()
    blocking.join()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_coroutine_that_is_cancelled_before_its_first_step_is_not_handled() -> None:
    loop, stop = EventLoop(), threading.Event()
    ran: set[int] = set()
    counted: set[int] = set()

    async def cancels_all() -> None:
        while not stop.is_set():
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()
            await asyncio.sleep(0)

    async def work(number: int) -> None:
        ran.add(number)

    thread = threading.Thread(target=lambda: loop.run(cancels_all()), daemon=True)
    thread.start()
    for number in range(50):
        with suppress(asyncio.CancelledError):
            loop.run(work(number))
            counted.add(number)
    stop.set()
    thread.join(5)
    assert counted <= ran


def test_a_handler_that_takes_too_long_is_told(drill: Drill) -> None:
    left: list[float] = []

    def slow(batch: Batch) -> None:
        left.append(batch.seconds_left)
        if len(batch) > 1:
            end = batch.seconds_left + 5
            while batch.seconds_left > -end:
                pass
        journal(batch)

    drill.deliver(slow, "a", "b", soft_time_limit=0.1)
    assert {type(error).__name__ for error in drill.errors} == {"SoftTimeLimitExceeded"}
    assert drill.states() == {"handled": 2}, "a batch that is too slow is halved"
    assert max(left) <= 0.1


def test_a_session_that_falls_silent_under_the_handler_frees_tenant_and_slot(drill: Drill) -> None:
    url = drill.deployment.engine.url.render_as_string(hide_password=False)
    drill.runtime.engine = connect(url, statement_timeout=0.5)
    stopped: list[int] = []

    def write_and_lose_the_session(batch: Batch) -> None:
        pid = batch.connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one()
        if not stopped:
            stopped.append(pid)
            os.kill(pid, signal.SIGSTOP)

    drill.handle(write_and_lose_the_session)
    drill.save("acme", "a")
    drill.save("globex", "b")
    started = time.monotonic()
    try:
        assert drill.run_one()
        (status,) = drill.gate.look("invoices", ["acme"])
        assert status.held, "the tenant waits for its back-off"
        assert drill.run_one()
        assert drill.states("globex") == {"handled": 1}, "and the process goes on with others"
        assert time.monotonic() - started < 20
    finally:
        os.kill(stopped[0], signal.SIGCONT)
    drill.go_on()
    assert drill.states() == {"handled": 2}
    assert [tenant for tenant, _ in drill.calls] == ["acme", "globex", "acme"]
    drill.runtime.engine.dispose()
