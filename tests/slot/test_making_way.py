"""A run of a tenant with a backlog makes way for a first event between two calls, and for nothing else."""

from __future__ import annotations

import time
from typing import Any

import pytest
import redis

from taskbridge.common.run_key import RunKey
from taskbridge.declaring.batch import Batch
from taskbridge.declaring.criteria import Criterion
from taskbridge.declaring.pipeline import Pipeline, Pipelines
from taskbridge.declaring.policy import DelaySinceLastRun
from taskbridge.gate import Answer, Queue, Reminder, State
from taskbridge.process.pace import Pace
from taskbridge.store import Cursors, record_many
from taskbridge.worker import delivery, slot
from tests.inline import AT_ONCE, Inline
from tests.slot.doing import handled, note_calls, queued, save, taken


@pytest.fixture(autouse=True)
def after_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a run ask after each call, however quick that was."""
    monkeypatch.setattr(delivery, "ASKED_EVERY", 0.0)


def save_backlog(inline: Inline, tenant: str, records: int = 4) -> None:
    record_many(inline.deployment.engine, "invoices", [(tenant, f"{number:03}", {}) for number in range(records)])
    inline.deployment.notify_event.delay(tenant)


def of_ten_milliseconds() -> Pace:
    """Return what is known of a handler that takes as long for each record."""
    pace = Pace()
    for records in (1, 10):
        pace.note(records, 0.01 * records)
    return pace


def run_next(inline: Inline) -> None:
    (run,) = taken(inline, 1)
    slot.run_tenant(inline.runtime, *run)


def test_a_first_event_that_comes_during_a_call_is_served_before_the_next_call(inline: Inline) -> None:
    def one_comes(batch: Batch) -> None:
        if (batch.tenant, len(called)) == ("big", 2):
            save(inline, ["small"])

    called = note_calls(inline, one_comes, batch_size=1)
    save_backlog(inline, "big")
    run_next(inline)
    assert called == ["big"] * 2
    assert queued(inline) == ["small", "big"]
    inline.run_all()
    assert called == ["big"] * 2 + ["small"] + ["big"] * 2


def test_with_nobody_waiting_a_backlog_is_one_run(inline: Inline) -> None:
    called = note_calls(inline, batch_size=1)
    save_backlog(inline, "big")
    run_next(inline)
    assert called == ["big"] * 4
    assert queued(inline) == []


def test_a_run_does_not_make_way_for_continuations_and_due_runs(inline: Inline) -> None:
    policy = DelaySinceLastRun((Criterion("$.level", "ERROR", "$.service", 0.001),))
    called: list[str] = []
    pipelines = Pipelines()
    pipelines.declare(Pipeline("invoices", lambda batch: called.append(batch.tenant), AT_ONCE, 1))
    pipelines.declare(Pipeline("alerts", lambda batch: called.append(batch.tenant), policy, 500))
    inline.runtime.pipelines = pipelines
    gate = inline.runtime.gate
    # given a tenant of the second pattern whose delay has passed, and one that a reconciler found
    gate.remind("alerts", [Reminder("due", 3_600_000, int(time.time() * 1000))])
    assert gate.expire("alerts", ["due"], early=True) == [Answer.PUBLISHED]
    gate.remind("invoices", [Reminder("found", 0)], by_base=True)
    gate.publish_waiting(["invoices:found"])
    save_backlog(inline, "big")
    # when the run of a backlog asks who waits
    message = next(run for run in taken(inline) if run.tenant == "big")
    gate.expire("alerts", ["due"])
    slot.run_tenant(inline.runtime, *message)
    # then it goes on to its end
    assert called == ["big"] * 4


def test_a_probe_and_a_turn_are_queued_as_continuations(inline: Inline) -> None:
    gate, first = inline.runtime.gate, inline.runtime.keys.queue(Queue.FIRST)
    gate.remind("invoices", [Reminder("found", 0)], by_base=True)
    gate.publish_waiting(["invoices:found"])
    assert gate.first_events() == 0
    assert inline.deployment.redis.llen(first) == 0
    assert queued(inline) == ["found"]


def test_a_slot_that_takes_no_first_events_makes_way_for_none(inline: Inline) -> None:
    called = note_calls(inline, batch_size=1)
    save_backlog(inline, "big")
    (run,) = taken(inline, 1)
    save(inline, ["small"])
    inline.runtime.taken_from = frozenset({inline.runtime.keys.queue(Queue.NEXT)})
    slot.run_tenant(inline.runtime, *run)
    assert called == ["big"] * 4


def test_a_redis_that_cannot_say_who_waits_does_not_end_the_run(
    inline: Inline, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away() -> int:
        raise redis.ConnectionError("gone")

    called = note_calls(inline, batch_size=1)
    save_backlog(inline, "big")
    (run,) = taken(inline, 1)
    monkeypatch.setattr(inline.runtime.gate, "first_events", away)
    slot.run_tenant(inline.runtime, *run)
    assert called == ["big"] * 4


@pytest.mark.parametrize("budget", [0.05, 0.5])
def test_the_first_run_of_a_tenant_with_a_backlog_is_cut_to_the_latency_budget(inline: Inline, budget: float) -> None:
    sizes: list[int] = []
    inline.handle(lambda batch: sizes.append(len(batch)), latency_budget=budget)
    inline.runtime.paces["invoices"] = of_ten_milliseconds()
    save_backlog(inline, "big", 100)
    run_next(inline)
    assert sizes[0] == budget / 0.01


def test_what_is_read_at_once_comes_in_calls_of_which_each_moves_the_cursor(
    inline: Inline, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    advanced: list[int] = []
    limits: list[int] = []

    def handle(batch: Batch) -> None:
        inline.runtime.paces["invoices"] = of_ten_milliseconds()
        advanced.append(handled(inline).get("big", 0))
        if "057" in (keys := [record.external_id for record in batch]) and "057" not in seen:
            seen.append("057")
            raise ValueError("057")
        seen.extend(keys)

    def read(cursors: Cursors, key: RunKey, limit: int, **options: Any) -> Any:
        limits.append(limit)
        return before(cursors, key, limit, **options)

    before = Cursors.read
    monkeypatch.setattr(Cursors, "read", read)
    inline.handle(handle)
    inline.runtime.paces["invoices"] = of_ten_milliseconds()
    save_backlog(inline, "big", 100)
    with pytest.raises(ValueError, match="057"):
        run_next(inline)
    assert advanced == list(range(0, 56, 5))
    assert limits == [5, 10, 20, 40]
    while inline.state("big") is not State.IDLE:
        inline.runtime.gate.expire("invoices", ["big"], early=True)
        inline.run_all()
    assert seen.pop(55) == "057"
    assert seen == [f"{number:03}" for number in range(100)], "each once"


@pytest.mark.parametrize("deployment", [{"reserved": 1}], indirect=True)
def test_a_first_run_leaves_a_slot_that_may_be_reserved_after_one_call(inline: Inline) -> None:
    called = note_calls(inline, batch_size=1)
    save_backlog(inline, "big")
    save_backlog(inline, "other")
    run: RunKey = taken(inline, 2)[0]
    slot.work(inline.runtime, *run)
    assert called == ["big"]
    assert sorted(queued(inline)) == ["big"]
