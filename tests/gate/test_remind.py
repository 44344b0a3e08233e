"""Reminders: what a tenant that has records, and no event, gets."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import redis
from celery import Celery

from taskbridge.declaring.policy import Spacing
from taskbridge.gate import Answer, Begun, Gate, Keys, Outcome, Queue, Reminder, State
from taskbridge.gate.gate import AT_ONCE
from taskbridge.gate.message import lua_message
from tests.gate.crowd import PIPELINE, TIMING, Crowd

BURSTS = Spacing(delay=200, lease=1_200)
TICKS = Spacing(delay=200, lease=1_200, empty_tick=200)


def remind(crowd: Crowd, *tenants: str, by_reconciler: bool = False) -> list[Answer]:
    return crowd.gate.remind(PIPELINE, [Reminder(tenant, 200) for tenant in tenants], by_reconciler=by_reconciler)


def run(crowd: Crowd, tenant: str, spacing: Spacing = BURSTS) -> Answer:
    assert isinstance(crowd.begin(tenant), Begun)
    return crowd.settle(tenant, Outcome.DONE, spacing)


def test_a_lone_event_makes_one_message_and_its_runner_ends_with_the_lease(crowd: Crowd) -> None:
    crowd.notify("a", spacing=BURSTS)
    assert run(crowd, "a") is Answer.LINGERING

    assert crowd.deadline_passes("a") is Answer.ENDED
    assert crowd.published == [(Queue.FIRST, "a")]
    assert crowd.status("a").state is State.IDLE


def test_a_lingering_runner_that_is_reminded_runs_once_more(crowd: Crowd) -> None:
    crowd.notify("a", spacing=BURSTS)
    run(crowd, "a")
    crowd.passes(50)

    assert remind(crowd, "a") == [Answer.DELAYED]
    assert remind(crowd, "a") == [Answer.DELAYED]
    assert crowd.status("a").events == 1, "however often it is said"
    assert crowd.deadline_passes("a") is Answer.PUBLISHED
    run(crowd, "a")
    assert crowd.deadline_passes("a") is Answer.ENDED


@pytest.mark.parametrize("by_reconciler", [False, True])
def test_who_had_an_event_does_not_wait_behind_those_that_were_found(crowd: Crowd, by_reconciler: bool) -> None:
    """A round may find the record of the event right before a ticker sees that the tenant is due."""
    assert remind(crowd, "other") == [Answer.STARTED], "as many as reminders may publish"
    crowd.notify("a", spacing=BURSTS)
    run(crowd, "a")
    crowd.notify("a", spacing=BURSTS)
    crowd.passes(200)

    assert remind(crowd, "a", by_reconciler=by_reconciler) == [Answer.DELAYED]
    assert crowd.gate.expire(PIPELINE, ["a"]) == [Answer.PUBLISHED]


def test_a_run_that_is_reminded_while_it_works_is_followed_by_another(crowd: Crowd) -> None:
    crowd.start("a")

    assert remind(crowd, "a", by_reconciler=True) == [Answer.ABSORBED]
    assert crowd.status("a").events == 1, "it may be the one that handles them"
    assert remind(crowd, "a") == [Answer.ABSORBED]
    assert crowd.settle("a", Outcome.DONE, BURSTS) is Answer.LINGERING
    assert crowd.deadline_passes("a") is Answer.PUBLISHED


def test_an_event_after_a_reminder_is_counted_twice(crowd: Crowd) -> None:
    """The poller may find a record between its commit and its event."""
    for by_reconciler in (False, True):
        name = f"found {by_reconciler}"
        remind(crowd, name, by_reconciler=by_reconciler)
        crowd.gate.notify(PIPELINE, name, BURSTS)
        begun = crowd.begin(name)

        assert isinstance(begun, Begun)
        assert (begun.events, begun.new_events, begun.runs) == (1, 1, 1)
        crowd.settle(name)


def test_a_burst_that_a_reminder_began_has_no_event(crowd: Crowd) -> None:
    remind(crowd, "a")
    assert crowd.status("a").events == 0
    begun = crowd.begin("a")

    assert isinstance(begun, Begun)
    assert (begun.events, begun.new_events, begun.runs, begun.found) == (0, 0, 1, True)
    assert crowd.settle("a") is Answer.FINISHED


def test_a_queued_and_a_held_tenant_are_left_alone(crowd: Crowd) -> None:
    crowd.notify("queued", "held", spacing=BURSTS)
    crowd.begin("held")
    crowd.fail("held", retry_ms=60_000)
    before = [crowd.status(tenant) for tenant in ("queued", "held")]

    assert remind(crowd, "queued", "held") == [Answer.ABSORBED] * 2
    assert [crowd.status(tenant) for tenant in ("queued", "held")] == before


def test_empty_ticks_run_until_the_lease_ends(crowd: Crowd) -> None:
    crowd.notify("a", spacing=TICKS)
    answers = []
    for _ in range(20):
        run(crowd, "a", TICKS)
        answers.append(crowd.deadline_passes("a"))
        if answers[-1] is Answer.ENDED:
            break
        assert answers[-1] is Answer.PUBLISHED
    assert 4 <= len(answers) <= 7, "one for each tick of 200 ms of the lease of 1.2 s"
    assert answers[-1] is Answer.ENDED


def test_a_forgotten_last_run_delays_all_the_same(crowd: Crowd) -> None:
    last = crowd.gate.us // 1000 - 100

    assert crowd.gate.remind(PIPELINE, [Reminder("a", 60_000, last)]) == [Answer.DELAYED]
    assert crowd.due("a") == crowd.now() - 100 + 60_000 or abs((crowd.due("a") or 0) - (59_900 + crowd.now())) <= 1


def test_each_tenant_of_a_call_is_delayed_by_its_own_last_run(crowd: Crowd) -> None:
    spacing, now_ms = Spacing(delay=60_000, last_ttl=300_000), crowd.gate.us // 1000
    crowd.gate.remember_last(PIPELINE, [("a", now_ms - 20_000), ("b", now_ms - 90_000), ("d", now_ms)], spacing)

    found = crowd.gate.remind(PIPELINE, [Reminder(tenant, 60_000) for tenant in "abcd"], most_in_flight=4)

    assert found == [Answer.DELAYED, Answer.STARTED, Answer.STARTED, Answer.DELAYED]
    assert [crowd.due(tenant) for tenant in "ad"] == [pytest.approx(at, abs=1) for at in (40_000, 60_000)]


def gate_of(client: redis.Redis, keys: Keys, broker: str) -> tuple[Gate, Callable[[], list[str]]]:
    """Return a gate, and what tells whose runs are in the queue of first events, the oldest first."""
    if broker == "its own":
        gate = Gate(client, keys, message=lua_message(Celery("tests", set_as_current=False)))
        return gate, lambda: [json.loads(message["body"])[0][1] for message in messages(client, keys)]
    published: list[str] = []
    return Gate(client, keys, publish=lambda _, __, tenant, ___: published.append(tenant)), lambda: published


def messages(client: redis.Redis, keys: Keys) -> list[Any]:
    texts: Any = client.lrange(keys.queue(Queue.FIRST), 0, -1)
    return [json.loads(text) for text in reversed(texts)]


HOUR_MS = 3_600_000


def test_a_clock_of_postgres_that_is_ahead_delays_no_longer_than_the_delay(crowd: Crowd) -> None:
    spacing = Spacing(delay=60_000, last_ttl=60_000)
    crowd.gate.remember_last(PIPELINE, [("forgotten", crowd.gate.us // 1000 + HOUR_MS)], spacing)
    crowd.gate.notify(PIPELINE, "forgotten", spacing)
    for tenant, ago_ms in (("known", 59_000), ("unknown", None)):
        if ago_ms is not None:
            crowd.gate.remember_last(PIPELINE, [(tenant, crowd.gate.us // 1000 - ago_ms)], spacing)
        ahead = Reminder(tenant, 60_000, crowd.gate.us // 1000 + HOUR_MS)
        assert crowd.gate.remind(PIPELINE, [ahead]) == [Answer.DELAYED]
    crowd.gate.remember_last(PIPELINE, [("known", crowd.gate.us // 1000 + HOUR_MS)], spacing)

    assert crowd.lasts(crowd.keys.last(PIPELINE, "known")) == pytest.approx(1_000, abs=2)
    assert crowd.due("known") in (1_000, 1_001)
    assert crowd.due("unknown") in (60_000, 60_001)
    assert crowd.due("forgotten") in (60_000, 60_001)


BROKERS = pytest.mark.parametrize("broker", ["its own", "another server"])


@BROKERS
def test_an_event_stands_behind_few_tenants_that_were_found(redis_client: redis.Redis, keys: Keys, broker: str) -> None:
    gate, queued = gate_of(redis_client, keys, broker)
    tenants = [f"{number:04}" for number in range(2 * AT_ONCE + 50)]

    answers = gate.remind(PIPELINE, [Reminder(tenant, 200) for tenant in tenants], most_in_flight=2)
    for at in range(50):
        answers += gate.remind("another", [Reminder(f"later {at}", 200)], most_in_flight=2)
    gate.notify(PIPELINE, "event", BURSTS)

    assert answers == [Answer.STARTED] * 2 + [Answer.POSTPONED] * (len(answers) - 2)
    assert queued() == [*tenants[:2], "event"]
    assert gate.overdue(PIPELINE, 1_000) == [], "no deadline waits behind them"
    waiting = [member.partition(":") for member in gate.fair_queue(1_000)]
    assert [tenant for name, _, tenant in waiting if name == PIPELINE] == tenants[2:]


def test_a_message_that_got_lost_is_in_the_way_of_nobody(crowd: Crowd) -> None:
    remind(crowd, "a")
    crowd.client.delete(crowd.keys.runner(PIPELINE, "a"))
    crowd.passes(TIMING.republish + 1_000)

    assert remind(crowd, "b") == [Answer.STARTED]


def test_two_tenants_of_one_call_share_neither_a_message_nor_a_moment(redis_client: redis.Redis, keys: Keys) -> None:
    gate = Gate(redis_client, keys, message=lua_message(Celery("tests", set_as_current=False)))
    tenants = [f"t{number:03}" for number in range(20)]

    gate.remind(PIPELINE, [Reminder(tenant, 200) for tenant in tenants], most_in_flight=len(tenants))

    found = messages(redis_client, keys)
    assert len({message["headers"]["id"] for message in found}) == len(tenants)
    assert len({message["properties"]["delivery_tag"] for message in found}) == len(tenants)
    tokens = [status.token for status in gate.look(PIPELINE, tenants)]
    assert tokens == sorted({str(token) for token in tokens})


def test_the_first_event_of_a_tenant_that_was_found_does_not_wait_for_its_turn(crowd: Crowd) -> None:
    remind(crowd, "b", "a", by_reconciler=True)
    assert crowd.published == []

    assert crowd.gate.notify(PIPELINE, "a", BURSTS) is Answer.STARTED
    assert crowd.published == [(Queue.FIRST, "a")]
    assert run(crowd, "a") is Answer.LINGERING
    crowd.gate.publish_waiting(crowd.gate.fair_queue(10))
    assert crowd.published == [(Queue.FIRST, "a"), (Queue.NEXT, "b")], "its turn is void"
