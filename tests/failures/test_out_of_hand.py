"""Handlers that go on whatever they are told, errors that cannot be read, and records that kill side by side."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import suppress

import pytest

from taskbridge.declaring.batch import Batch, RetryAfter
from taskbridge.handlers.journal import journal
from taskbridge.process import event_loop
from taskbridge.process.event_loop import EventLoop, NotBegun
from tests.failures.drill import Drill
from tests.waiting import taking_at_most


class WaitWithoutSeconds(RetryAfter):
    def __init__(self) -> None:
        """Leave out what the reconciler class sets."""


def test_a_wait_that_does_not_say_how_long_is_one_of_thirty_seconds(drill: Drill) -> None:
    def handler(batch: Batch) -> None:
        if len(drill.calls) == 1:
            raise WaitWithoutSeconds
        journal(batch)

    drill.handle(handler)
    drill.save("acme", "one")
    drill.go_on(steps=20)
    assert drill.states() == {"handled": 1}
    assert 30_000 <= drill.times[1] - drill.times[0] <= 31_000


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

    drill.handle(handler, soft_time_limit=0.1, max_attempts=1)
    drill.save("acme", "a", "b", "c")
    drill.go_on(steps=100)
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


def test_a_handler_that_asks_to_wait_for_no_time_is_called_once_a_tick(drill: Drill) -> None:
    def handler(_: Batch) -> None:
        raise RetryAfter("Wed, 21 Oct 2015 07:28:00 GMT")

    drill.handle(handler)
    drill.save("acme", "one")
    drill.go_on(lambda: drill.now_ms >= 2_000, steps=200)
    assert 2 <= len(drill.calls) <= 11


def test_a_coroutine_that_blocks_the_loop_holds_no_other_longer_than_its_own_time_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(event_loop, "CANCEL_TIMEOUT", 60.0)
    loop, blocked, released, began = EventLoop(), threading.Event(), threading.Event(), list[str]()

    async def blocks() -> None:
        blocked.set()
        released.wait(20)

    async def works(name: str) -> None:
        began.append(name)

    blocking = threading.Thread(target=loop.run, args=(blocks(),))
    blocking.start()
    assert blocked.wait(30)
    with pytest.raises(NotBegun, match=r"has blocked the event loop for 0\.2 s"):
        loop.run(works("second"), 0.2)
    loop.run(works("third"), 30)
    assert blocking.is_alive(), "nobody waited for its end"
    released.set()
    blocking.join()
    assert began == ["third"], "what was given up never begins"


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
