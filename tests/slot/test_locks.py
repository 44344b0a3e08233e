"""A cursor that is locked, or a statement that takes too long, keeps no other run waiting."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from psycopg.errors import QueryCanceled

from taskbridge.declaring.batch import Batch
from taskbridge.store import Claim, Cursors, NoAnswer, Unread
from tests.inline import Inline
from tests.slot.doing import (
    IMPATIENT,
    TENANTS,
    Locks,
    failed,
    handled,
    note_calls,
    nothing,
    queued,
    run_in_a_thread,
    run_together,
    save,
    save_again,
    save_orders,
    two_pipelines,
)
from tests.waiting import wait_until


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
    assert run_together(inline) == [None] * 4, "who was too slow, nobody knows"
    assert sorted(queued(inline)) == ["b", "c", "d"]
    assert handled(inline) == {"a": 1}


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


def slow_first_claims(inline: Inline, seconds: str) -> None:
    """Let the first claim of each tenant take so long; `seconds` is an expression over new.tenant."""
    with inline.deployment.engine.begin() as connection:
        connection.exec_driver_sql(
            "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS "
            f"$$ BEGIN PERFORM pg_sleep({seconds}); RETURN new; END $$"
        )
        connection.exec_driver_sql(
            "CREATE TRIGGER slow BEFORE INSERT ON taskbridge.sync_cursors FOR EACH ROW EXECUTE FUNCTION slow()"
        )


@pytest.mark.parametrize("deployment", [{"statement_timeout": 1.0}], indirect=True)
@pytest.mark.parametrize("slow", ["CASE new.tenant WHEN 'h' THEN 3 ELSE 0.4 END", "0.4"])
def test_where_all_claims_are_slow_nobody_is_to_blame(inline: Inline, slow: str) -> None:
    called = note_calls(inline)
    slow_first_claims(inline, slow)
    save(inline, "abcdefgh")
    assert run_together(inline) == [None] * 8
    assert called == ["a"]
    assert sorted(queued(inline)) == list("bcdefgh")


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


@pytest.mark.parametrize("deployment", [IMPATIENT], indirect=True)
def test_a_claim_that_takes_too_long_is_no_fault_of_those_that_began_with_it(inline: Inline) -> None:
    called = note_calls(inline)
    slow_first_claims(inline, "CASE new.tenant WHEN 'c' THEN 30 ELSE 0 END")
    save(inline)
    assert failed(run_together(inline)) == ["c"]
    assert called == ["a", "b", "d"]
    assert handled(inline) == {"a": 1, "b": 1, "d": 1}
