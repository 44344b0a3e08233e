"""Nobody waits long behind a slow handler."""

from __future__ import annotations

import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import FrameType
from typing import Any

import pytest
import redis

from taskbridge.declaring.batch import Batch
from taskbridge.declaring.pipeline import Pipeline
from taskbridge.errors import RunFailed
from taskbridge.gate import State
from taskbridge.store import record_invoice
from taskbridge.worker import slot
from tests.inline import Inline
from tests.slot.doing import (
    TENANTS,
    do_no_run,
    handled,
    note_calls,
    nothing,
    queued,
    quick,
    run_in_a_thread,
    run_together,
    save,
    taken,
    work,
)
from tests.waiting import wait_until


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


def test_only_so_many_are_taken_as_are_done_before_the_next_look_at_first_events(
    inline: Inline, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = do_no_run(monkeypatch)
    monkeypatch.setattr(slot, "SLICE", 2.5)
    inline.runtime.paces["invoices"].note(1, 0.009)
    save(inline, "abcdef")
    work(inline)
    # Three of them exceed 20 ms together.
    assert together[:3] == [["a"], ["b", "c", "d"], ["e", "f"]]


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


def test_a_run_that_ended_before_its_claim_does_not_wait_for_a_handler(
    inline: Inline, monkeypatch: pytest.MonkeyPatch, threads: ThreadPoolExecutor, never: threading.Event
) -> None:
    register = inline.runtime.register
    known: list[Pipeline] = []

    def fail_once(pipeline: Pipeline) -> None:
        known.append(pipeline)
        if len(known) == 1:
            raise ConnectionError("Postgres is away")
        register(pipeline)

    def hang(_: Batch) -> None:
        never.wait()

    monkeypatch.setattr(inline.runtime, "register", fail_once)
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
    with pytest.raises(RunFailed, match="its own"):
        slot.work(inline.runtime, *second)
    assert handled(inline)["a"] == 1
    assert caplog.text.count("their deadlines publish them again: ConnectionError: gone") == 2
