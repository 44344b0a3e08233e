"""Which messages a slot takes out of the queues, and which it leaves there."""

from __future__ import annotations

import time
from typing import Final

import pytest
from celery import Celery

from taskbridge.declaring.batch import Batch
from taskbridge.declaring.policy import LatencyNeutral, Spacing
from taskbridge.gate import Answer, Constant, Queue, Reminder
from taskbridge.worker import slot
from tests.deployment import Deployment
from tests.inline import Inline
from tests.slot.doing import (
    TENANTS,
    do_no_run,
    handled,
    note_calls,
    nothing,
    queued,
    quick,
    run_together,
    save,
    taken,
    two_pipelines,
    work,
)

SPACING: Final = Spacing(delay=200, lease=1_200)


def test_a_message_is_followed_by_the_runs_behind_it(inline: Inline) -> None:
    called = note_calls(inline)
    save(inline)
    work(inline)
    assert called == TENANTS
    assert handled(inline) == dict.fromkeys(TENANTS, 1)
    assert not inline.runtime.gate.active("invoices")
    assert queued(inline) == []


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


def test_runs_of_a_pipeline_that_this_worker_does_not_declare_go_round_nowhere(inline: Inline) -> None:
    gate, deployment = inline.runtime.gate, inline.deployment
    gate.notify_many([("gone", f"tenant-{at}", SPACING) for at in range(40)])
    save(inline)
    inline.handle(nothing)
    quick(inline)

    message = inline.message()
    assert message is not None
    slot.work(inline.runtime, *message)

    assert queued(inline) == []
    assert handled(inline) == dict.fromkeys(TENANTS, 1)
    soon = time.time() * 1000 + Constant.DECLINED_MS
    assert deployment.redis.zcount(inline.runtime.keys.due("gone"), "-inf", soon) == 40


def test_a_run_that_was_declined_is_published_again_by_who_declares_its_pipeline(inline: Inline) -> None:
    gate = inline.runtime.gate
    gate.notify("gone", "acme", SPACING)
    save(inline, "a")
    inline.handle(nothing)
    quick(inline)
    work(inline)
    inline.deployment.redis.zadd(inline.runtime.keys.due("gone"), {"acme": 1})
    assert gate.expire("gone", gate.tick("gone", 10).tenants) == [Answer.REPUBLISHED]


def wait_for_their_turn(inline: Inline, pipeline: str, *tenants: str) -> None:
    inline.runtime.gate.remind(pipeline, [Reminder(tenant, 0) for tenant in tenants], by_reconciler=True)


def test_a_slot_that_has_time_gives_turns_and_takes_them(inline: Inline, monkeypatch: pytest.MonkeyPatch) -> None:
    save(inline, ["a", "b"])
    inline.handle(nothing)
    quick(inline)
    wait_for_their_turn(inline, "invoices", *(f"tenant-{at}" for at in range(20)))
    together = do_no_run(monkeypatch)

    slot.work(inline.runtime, *taken(inline, 1)[0])

    assert together == [["a"], ["b", *(f"tenant-{at}" for at in range(15))], [f"tenant-{at}" for at in range(15, 20)]]
    assert queued(inline) == []


def test_a_slot_gives_no_turn_that_it_has_no_time_for(inline: Inline, monkeypatch: pytest.MonkeyPatch) -> None:
    two_pipelines(inline, nothing)
    save(inline, ["a"])
    quick(inline)
    wait_for_their_turn(inline, "invoices", "b", "c", "d")
    wait_for_their_turn(inline, "orders", "e")
    together = do_no_run(monkeypatch)

    work(inline)

    assert together == [["a"], ["b"]]
    assert queued(inline) == [], "a deadline would stand behind it"
    assert inline.runtime.gate.fair_queue(9) == ["orders:e", "invoices:c", "invoices:d"]


def test_a_slot_that_serves_first_events_alone_gives_no_turns(inline: Inline, monkeypatch: pytest.MonkeyPatch) -> None:
    inline.runtime.taken_from = frozenset({Queue.FIRST.value})
    save(inline, ["a"])
    inline.handle(nothing)
    quick(inline)
    wait_for_their_turn(inline, "invoices", "b")
    together = do_no_run(monkeypatch)

    work(inline)

    assert together == [["a"]]
    assert inline.runtime.gate.fair_queue(9) == ["invoices:b"]
