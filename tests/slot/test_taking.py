"""Which messages a slot takes out of the queues, which it leaves there, and when a run makes way for others."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import pytest
from celery import Celery

from taskbridge.declaring.batch import Batch
from taskbridge.declaring.policy import Spacing
from taskbridge.gate import Answer, Constant, Queue, Reminder
from taskbridge.store import record_invoice
from taskbridge.worker import slot
from tests.slot.slots import TENANTS, Slot, do_no_run, nothing

SPACING: Final = Spacing(delay=200, lease=1_200)


def test_a_worker_that_stops_leaves_the_rest_to_another(inline: Slot, monkeypatch: pytest.MonkeyPatch) -> None:
    inline.handle(lambda _: monkeypatch.setattr(slot, "is_stopping", lambda: True))
    inline.save()
    inline.quick()
    inline.work()
    assert inline.queued() == TENANTS[1:]


def test_first_events_are_taken_before_continuations_and_nothing_from_a_queue_that_is_not_served(
    inline: Slot, monkeypatch: pytest.MonkeyPatch
) -> None:
    redis = inline.deployment.redis
    inline.save()
    redis.rpoplpush(Queue.FIRST.value, Queue.NEXT.value)
    assert inline.queued() == ["b", "c", "d", "a"]
    inline.runtime.serves = inline.runtime.taken_from = frozenset({Queue.NEXT.value})
    inline.handle(nothing)
    inline.quick()
    together = do_no_run(monkeypatch)
    slot.work(inline.runtime, "invoices", "lone", "token")
    assert together == [["lone"], ["a"]]
    assert inline.queued() == ["b", "c", "d"]


def test_a_message_that_is_no_runs_stays_where_it_is(inline: Slot) -> None:
    with Celery(broker=inline.deployment.settings.redis_url, set_as_current=False) as foreign:
        foreign.send_task("taskbridge.notify_event", ['"task": "taskbridge.run"'], queue=Queue.FIRST.value)
    inline.save("a")
    assert inline.queued() == []
    assert inline.deployment.redis.llen(Queue.FIRST.value) == 2


def test_the_process_is_told_to_end_while_others_wait(inline: Slot) -> None:
    def interrupt(batch: Batch) -> None:
        if batch.tenant == "b":
            raise KeyboardInterrupt

    called = inline.note_calls(interrupt)
    inline.save()
    with pytest.raises(KeyboardInterrupt):
        inline.run_together()
    # What is done is done, and the rest is for another worker at once.
    assert inline.handled() == {"a": 1, "b": 0, "c": 0, "d": 0}
    assert called == ["a", "b"]
    assert sorted(inline.queued()) == ["b", "c", "d"]


def test_runs_of_a_pipeline_that_this_worker_does_not_declare_go_round_nowhere(inline: Slot) -> None:
    gate, deployment = inline.gate, inline.deployment
    gate.notify_many([("gone", f"tenant-{at}", SPACING) for at in range(40)])
    inline.save()
    inline.handle(nothing)
    inline.quick()

    message = inline.message()
    assert message is not None
    slot.work(inline.runtime, *message)

    assert inline.queued() == []
    assert inline.handled() == dict.fromkeys(TENANTS, 1)
    soon = time.time() * 1000 + Constant.DECLINED_MS
    assert deployment.redis.zcount(inline.runtime.keys.due("gone"), "-inf", soon) == 40
    # A worker that declares the pipeline publishes them again.
    deployment.redis.zadd(inline.runtime.keys.due("gone"), {"tenant-0": 1})
    assert gate.expire("gone", ["tenant-0"]) == [Answer.REPUBLISHED]


def wait_for_their_turn(inline: Slot, pipeline: str, *tenants: str) -> None:
    inline.gate.remind(pipeline, [Reminder(tenant, 0) for tenant in tenants], by_reconciler=True)


def test_a_slot_that_has_time_gives_turns_and_takes_them(inline: Slot, monkeypatch: pytest.MonkeyPatch) -> None:
    inline.save(["a", "b"])
    inline.handle(nothing)
    inline.quick()
    wait_for_their_turn(inline, "invoices", *(f"tenant-{at}" for at in range(20)))
    together = do_no_run(monkeypatch)

    slot.work(inline.runtime, *inline.taken(1)[0])

    assert together == [["a"], ["b", *(f"tenant-{at}" for at in range(15))], [f"tenant-{at}" for at in range(15, 20)]]
    assert inline.queued() == []


def test_a_slot_gives_no_turn_that_it_has_no_time_for(inline: Slot, monkeypatch: pytest.MonkeyPatch) -> None:
    inline.two_pipelines(nothing)
    inline.save(["a"])
    inline.quick()
    wait_for_their_turn(inline, "invoices", "b", "c", "d")
    wait_for_their_turn(inline, "orders", "e")
    together = do_no_run(monkeypatch)

    inline.work()

    assert together == [["a"], ["b"]]
    assert inline.queued() == [], "a deadline would stand behind it"
    assert inline.gate.fair_queue(9) == ["orders:e", "invoices:c", "invoices:d"]


def test_a_slot_that_serves_first_events_alone_gives_no_turns(inline: Slot, monkeypatch: pytest.MonkeyPatch) -> None:
    inline.runtime.serves = inline.runtime.taken_from = frozenset({Queue.FIRST.value})
    inline.save(["a"])
    inline.handle(nothing)
    inline.quick()
    wait_for_their_turn(inline, "invoices", "b")
    together = do_no_run(monkeypatch)

    inline.work()

    assert together == [["a"]]
    assert inline.gate.fair_queue(9) == ["invoices:b"]


def handled_before_the_next(
    inline: Slot, newcomer: str | None, do: Callable[[Slot], object] = Slot.run_together
) -> list[str]:
    """Do one run of `large`, which has three batches, while `newcomer` saves its first record; return the calls."""
    calls: list[str] = []

    def handle(batch: Batch) -> None:
        calls.append(batch.tenant)
        if newcomer and len(calls) == 1:
            inline.save([newcomer])

    inline.handle(handle, batch_size=2)
    for number in range(6):
        record_invoice(inline.deployment.engine, "large", str(number), {})
    inline.deployment.notify_event.delay("large")
    do(inline)
    return calls


def test_a_run_ends_after_the_call_in_which_a_first_event_came(inline: Slot) -> None:
    assert handled_before_the_next(inline, "lone") == ["large"]
    assert inline.queued() == ["lone", "large"]


def test_the_slot_itself_takes_that_first_event_also_after_its_slice(
    inline: Slot, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slot, "SLICE", 0.0)
    assert handled_before_the_next(inline, "lone", Slot.work) == ["large", "lone"]
    assert inline.queued() == ["large"]


@pytest.mark.parametrize("newcomer", [None, "large"], ids=["nobody", "an event of its own tenant"])
def test_a_run_goes_on_while_no_other_tenant_waits(inline: Slot, newcomer: str | None) -> None:
    assert handled_before_the_next(inline, newcomer) == ["large"] * 3
    assert inline.queued() == ([newcomer] if newcomer else [])


def test_a_worker_that_takes_only_first_events_leaves_a_backlog_to_others(
    inline: Slot, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = inline.runtime.keys.queues
    monkeypatch.setattr(inline.runtime, "serves", frozenset({first}))
    assert handled_before_the_next(inline, None) == ["large"]
    assert inline.queued() == ["large"]
