"""Runs that begin together: none costs the others anything, and nobody waits for a slow handler or a locked cursor."""

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
from taskbridge.errors import RunFailed
from taskbridge.gate import State
from taskbridge.store import Cursors, NoAnswer, record_invoice
from taskbridge.worker import group, slot
from tests.slot.slots import IMPATIENT, TENANTS, Locks, Slot, do_no_run, failed, nothing
from tests.waiting import wait_until


def test_what_is_done_is_advanced_before_the_next_handler_is_called_after_a_slow_one(
    inline: Slot, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group, "ADVANCED_WITHIN", 0.05)
    seen: list[dict[str, int]] = []

    def handle(batch: Batch) -> None:
        seen.append(inline.handled())
        time.sleep(0.1 if batch.tenant == "b" else 0.0)

    inline.handle(handle)
    inline.save()
    inline.run_together()
    assert seen[1].get("a", 0) == 0, "a and b are advanced together"
    assert {tenant: seen[2][tenant] for tenant in "ab"} == {"a": 1, "b": 1}


def test_one_that_fails_stops_none_and_each_error_is_told_with_its_tenant(
    inline: Slot, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(batch: Batch) -> None:
        if batch.tenant in "ac":
            raise ValueError(f"no {batch.tenant}")

    called = inline.note_calls(fail)
    inline.save()
    inline.quick()
    with pytest.raises(RunFailed, match="no a"):
        inline.work()
    assert sorted(called) == TENANTS
    found = inline.gate.look("invoices", ["a", "c"])
    assert [(status.state, status.held) for status in found] == [(State.WAITING, True)] * 2
    assert {tenant for tenant, records in inline.handled().items() if records} == {"b", "d"}
    (told,) = [record for record in caplog.records if record.name == slot.__name__]
    assert "tenant 'c' failed" in told.getMessage()
    assert told.exc_info is not None
    assert str(told.exc_info[1]) == "no c"


def test_one_whose_cursor_was_lost_meanwhile_costs_the_others_nothing(inline: Slot) -> None:
    def handle(batch: Batch) -> None:
        if batch.tenant == "b":
            inline.deployment.execute("UPDATE taskbridge.sync_cursors SET owner = 'z' WHERE tenant = 'b'")

    inline.handle(handle)
    inline.save()
    assert inline.run_together() == [None] * 4
    assert inline.handled() == {"a": 1, "b": 0, "c": 1, "d": 1}


def test_runs_of_two_pipelines_over_two_sources_begin_together(inline: Slot) -> None:
    called: list[tuple[str, str, str]] = []
    inline.two_pipelines(lambda batch: called.append((batch.pipeline, batch.tenant, batch[0].external_id)))
    inline.save("ab", number="1")
    inline.save_orders("ab")
    errors = inline.run_together()
    assert errors == [None] * 4
    expected = [(name, tenant, "1") for name in ("invoices", "orders") for tenant in ("a", "b")]
    assert sorted(called) == expected
    cursors = inline.deployment.rows("SELECT pipeline, tenant, records FROM taskbridge.sync_cursors")
    assert sorted(tuple(row) for row in cursors) == [(name, tenant, 1) for name, tenant, _ in expected]
    assert inline.gate.active("invoices") == inline.gate.active("orders") == []


def test_one_batch_of_each_is_delivered_and_the_rest_comes_in_its_turn(inline: Slot) -> None:
    sizes: list[tuple[str, int]] = []
    inline.handle(lambda batch: sizes.append((batch.tenant, len(batch))), batch_size=2)
    for number in range(5):
        record_invoice(inline.deployment.engine, "a", str(number), {})
    inline.deployment.notify_event.delay("a")
    inline.save("bc")
    inline.run_together()
    assert sizes == [("a", 2), ("b", 1), ("c", 1)]
    assert inline.queued() == ["a"]
    inline.run_all()
    assert sum(size for tenant, size in sizes if tenant == "a") == 5


def test_only_so_many_are_taken_as_are_done_before_the_next_look_at_first_events(
    inline: Slot, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = do_no_run(monkeypatch)
    monkeypatch.setattr(slot, "SLICE", 2.5)
    inline.runtime.paces["invoices"].note(1, 0.009)
    inline.save("abcdef")
    inline.work()
    # Three of them exceed 20 ms together.
    assert together[:3] == [["a"], ["b", "c", "d"], ["e", "f"]]


def test_who_waits_behind_a_handler_that_was_slower_than_expected_is_given_back(
    inline: Slot, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slot, "SLICE", 2.0)
    called = inline.note_calls(lambda batch: time.sleep(2.1 if batch.tenant == "b" else 0.0))
    inline.save()
    inline.quick()
    inline.work()
    assert called == ["a", "b"]
    assert inline.handled() == {"a": 1, "b": 1, "c": 0, "d": 0}
    assert sorted(inline.queued()) == ["c", "d"]
    inline.run_all()
    assert sorted(called) == TENANTS


def test_a_handler_that_never_ends_keeps_nobody_waiting(
    inline: Slot, monkeypatch: pytest.MonkeyPatch, threads: ThreadPoolExecutor, never: threading.Event
) -> None:
    def hang(batch: Batch) -> None:
        if batch.tenant == "c":
            never.wait()

    monkeypatch.setattr(slot, "SLICE", 2.0)
    gate = inline.gate
    called = inline.note_calls(hang, max_runs=5)
    inline.save("abcde")
    inline.quick()
    working = threads.submit(inline.work)
    # b is done, and d and e have begun: the one advances, and the others are for another slot.
    wait_until(lambda: sorted(gate.active("invoices")) == ["c", "d", "e"], "b has ended")
    wait_until(lambda: inline.queued() == ["d", "e"], "d and e are given back, in their order")
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
    assert inline.handled() == dict.fromkeys("abcde", 1)
    assert not gate.active("invoices")


@pytest.mark.parametrize("deployment", [{"run_budget": 0.5}], indirect=True)
def test_who_failed_and_waits_behind_a_handler_that_hangs_waits_for_its_back_off_elsewhere(
    inline: Slot, threads: ThreadPoolExecutor, never: threading.Event
) -> None:
    def handle(batch: Batch) -> None:
        if batch.tenant == "d":
            never.wait()
        raise ValueError("no")

    inline.handle(handle)
    inline.save()
    errors = inline.run_in_a_thread(threads, 0.2)
    gate = inline.gate
    wait_until(lambda: all(status.held for status in gate.look("invoices", ["a", "b", "c"])), "their slot is free")
    never.set()
    assert [str(error) for error in errors.result()] == ["no"] * 4


def test_a_process_that_is_told_to_end_waits_for_the_thread_that_finishes_its_runs(
    inline: Slot, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, told, ended, main = threading.Event(), threading.Event(), threading.Event(), threading.get_ident()
    settle = inline.gate.settle_many

    def slowly(*args: Any, **options: Any) -> Any:
        if threading.current_thread().name != "taskbridge-relief":
            return settle(*args, **options)
        slow.set()
        told.wait(30)
        time.sleep(0.3)
        found = settle(*args, **options)
        ended.set()
        return found

    def stop(_: int, __: FrameType | None) -> None:
        raise SystemExit("told to end")

    def tell() -> None:
        slow.wait()
        time.sleep(1.0)  # by now the handler has returned
        signal.pthread_kill(main, signal.SIGUSR1)
        told.set()

    def handle(batch: Batch) -> None:
        if batch.tenant == "b":
            slow.wait(10)

    monkeypatch.setattr(inline.gate, "settle_many", slowly)
    before = signal.signal(signal.SIGUSR1, stop)
    try:
        inline.handle(handle)
        inline.save()
        threading.Thread(target=tell).start()
        with pytest.raises(SystemExit):
            inline.run_together(0.2)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert ended.is_set()
    assert inline.handled()["a"] == 1
    assert set(inline.queued()) >= {"c", "d"}


def test_a_redis_that_goes_away_meanwhile_says_nothing_of_the_run_that_has_ended(
    inline: Slot, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def away(*_: int) -> None:
        raise redis.ConnectionError("gone")

    def handle(batch: Batch) -> None:
        if batch.tenant == "b":
            raise ValueError("its own")

    inline.handle(handle)
    inline.save()
    first, second = inline.taken(2)
    monkeypatch.setattr(inline.gate, "take", away)
    slot.work(inline.runtime, *first)
    with pytest.raises(RunFailed, match="its own"):
        slot.work(inline.runtime, *second)
    assert inline.handled()["a"] == 1
    assert caplog.text.count("their deadlines publish them again: ConnectionError: gone") == 2


def test_runs_whose_cursors_are_locked_come_after_the_others(inline: Slot, locks: Locks) -> None:
    def release(batch: Batch) -> None:
        if batch.tenant == "d":
            locks.release()

    inline.save_again()
    called = inline.note_calls(release)
    locks.take("a", "b")
    assert inline.run_together() == [None] * 4
    assert called == ["c", "d", "a", "b"]


@pytest.mark.parametrize("deployment", [{"statement_timeout": 2.0, "run_budget": 0.2}], indirect=True)
def test_only_one_run_waits_for_a_locked_cursor(inline: Slot, locks: Locks) -> None:
    inline.save_again()
    locks.take("a", "b")
    assert failed(inline.run_together(0.05)) == ["a"]
    assert inline.queued() == ["b"]
    assert inline.handled() == {"a": 1, "b": 1, "c": 2, "d": 2}


def test_where_postgres_does_not_answer_one_run_waits_and_the_others_are_given_back(
    inline: Slot, monkeypatch: pytest.MonkeyPatch
) -> None:
    inline.handle(nothing)
    inline.save()

    def silent(*_: Any) -> None:
        raise NoAnswer("Postgres has not answered")

    monkeypatch.setattr(Cursors, "_claim_at_once", silent)
    assert inline.run_together() == [None] * 4, "who was too slow, nobody knows"
    assert sorted(inline.queued()) == ["b", "c", "d"]
    assert inline.handled() == {"a": 1}


def slow_first_claims(inline: Slot, seconds: str) -> None:
    """Let the first claim of each tenant take so long; `seconds` is an expression over new.tenant."""
    inline.deployment.execute(
        "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$ BEGIN PERFORM pg_sleep({seconds}); RETURN new; END $$"
    )
    inline.deployment.execute(
        "CREATE TRIGGER slow BEFORE INSERT ON taskbridge.sync_cursors FOR EACH ROW EXECUTE FUNCTION slow()"
    )


@pytest.mark.parametrize("deployment", [{"statement_timeout": 1.0}], indirect=True)
def test_where_all_claims_are_slow_nobody_is_to_blame(inline: Slot) -> None:
    called = inline.note_calls()
    slow_first_claims(inline, "0.4")
    inline.save("abcdefgh")
    assert inline.run_together() == [None] * 8
    assert called == ["a"]
    assert sorted(inline.queued()) == list("bcdefgh")


def test_runs_whose_cursors_nobody_locked_are_settled_before_one_waits_for_a_lock(
    inline: Slot, threads: ThreadPoolExecutor, locks: Locks
) -> None:
    def handle(batch: Batch) -> None:
        if batch.tenant == "d":
            locks.take("a", "b")

    inline.handle(handle)
    inline.save()
    errors = inline.run_in_a_thread(threads)
    wait_until(lambda: sorted(inline.gate.active("invoices")) == ["a", "b"], "c and d have ended")
    locks.release()
    assert errors.result() == [None] * 4
    assert inline.handled() == dict.fromkeys(TENANTS, 1)


@IMPATIENT
def test_a_cursor_that_gets_locked_before_the_advance_keeps_none_of_the_others(inline: Slot, locks: Locks) -> None:
    def handle(batch: Batch) -> None:
        if batch.tenant == "b":
            locks.take("b")

    inline.handle(handle)
    inline.save()
    assert failed(inline.run_together()) == ["b"]
    assert inline.handled() == {"a": 1, "b": 0, "c": 1, "d": 1}


@IMPATIENT
def test_a_claim_that_takes_too_long_is_no_fault_of_those_that_began_with_it(inline: Slot) -> None:
    called = inline.note_calls()
    slow_first_claims(inline, "CASE new.tenant WHEN 'c' THEN 30 ELSE 0 END")
    inline.save()
    assert failed(inline.run_together()) == ["c"]
    assert called == ["a", "b", "d"]
    assert inline.handled() == {"a": 1, "b": 1, "d": 1}
