"""Reminders: what a tenant that has records, and no event, gets."""

from __future__ import annotations

import json
from typing import Any

import pytest
import redis
from celery import Celery

from taskbridge.declaring.policy import Spacing
from taskbridge.gate import Answer, Begun, Gate, Keys, Outcome, Queue, Reminder, State
from taskbridge.gate.gate import MOST_SENT
from taskbridge.gate.message import lua_message
from tests.gate.crowd import PIPELINE, Crowd

BURSTS = Spacing(delay=200, lease=1_200)
TICKS = Spacing(delay=200, lease=1_200, empty_tick=200)


@pytest.fixture
def crowd(redis_client: redis.Redis, keys: Keys) -> Crowd:
    return Crowd(redis_client, keys)


def remind(crowd: Crowd, *tenants: str, looked: bool = False) -> list[Answer]:
    return crowd.gate.remind(PIPELINE, [Reminder(tenant, 200) for tenant in tenants], looked=looked)


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
    assert crowd.status("a").events == 2, "however often it is said"
    assert crowd.deadline_passes("a") is Answer.PUBLISHED
    run(crowd, "a")
    assert crowd.deadline_passes("a") is Answer.ENDED


def test_a_run_that_is_reminded_while_it_works_is_followed_by_another(crowd: Crowd) -> None:
    crowd.start("a")

    assert remind(crowd, "a", looked=True) == [Answer.ABSORBED]
    assert crowd.status("a").events == 1, "it may be the one that handles them"
    assert remind(crowd, "a") == [Answer.ABSORBED]
    assert crowd.settle("a", Outcome.DONE, BURSTS) is Answer.LINGERING
    assert crowd.deadline_passes("a") is Answer.PUBLISHED


def test_a_queued_and_a_held_tenant_are_left_alone(crowd: Crowd) -> None:
    crowd.notify("queued", "held", spacing=BURSTS)
    crowd.begin("held")
    crowd.fail("held", retry_ms=60_000)
    before = [crowd.status(tenant) for tenant in ("queued", "held")]

    assert remind(crowd, "queued", "held") == [Answer.ABSORBED] * 2
    assert [crowd.status(tenant) for tenant in ("queued", "held")] == before


def test_an_operator_who_starts_a_lingering_tenant_gets_a_run(crowd: Crowd) -> None:
    crowd.notify("a", spacing=BURSTS)
    run(crowd, "a")

    assert crowd.expire("a", early=True) == [Answer.PUBLISHED]


def test_a_held_tenant_is_not_ended_by_its_deadline(crowd: Crowd) -> None:
    crowd.notify("a", spacing=BURSTS)
    crowd.begin("a")
    crowd.fail("a")

    assert crowd.deadline_passes("a") is Answer.PUBLISHED


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


def test_many_deadlines_together_publish_nothing_for_those_that_end(crowd: Crowd) -> None:
    crowd.notify("a", "b", spacing=BURSTS)
    for tenant in ("a", "b"):
        run(crowd, tenant)
    crowd.notify("b", spacing=BURSTS)
    crowd.passes(5_000)

    assert [tenant for tenant, _ in crowd.gate.expire_together(PIPELINE, ["a", "b"])] == ["b"]
    assert crowd.status("a").state is State.IDLE


def test_a_forgotten_last_run_delays_all_the_same(crowd: Crowd) -> None:
    last = crowd.gate.us // 1000 - 100

    assert crowd.gate.remind(PIPELINE, [Reminder("a", 60_000, last)]) == [Answer.DELAYED]
    assert crowd.due("a") == crowd.now() - 100 + 60_000 or abs((crowd.due("a") or 0) - (59_900 + crowd.now())) <= 1


def test_more_reminders_than_may_be_queued_wait_for_their_turn(redis_client: redis.Redis, keys: Keys) -> None:
    published: list[str] = []
    gate = Gate(redis_client, keys, publish=lambda _, __, tenant, ___: published.append(tenant))
    tenants = [f"{number:04}" for number in range(MOST_SENT + 50)]

    answers = gate.remind(PIPELINE, [Reminder(tenant, 200) for tenant in tenants])

    assert answers == [Answer.STARTED] * MOST_SENT + [Answer.POSTPONED] * 50
    assert published == tenants[:MOST_SENT]
    assert gate.peek(PIPELINE, 1_000)[0] == [], "no deadline waits behind them"
    assert gate.turns(100)[1] == [f"{PIPELINE}:{tenant}" for tenant in tenants[MOST_SENT:]]


def test_two_tenants_of_one_call_share_neither_a_message_nor_a_moment(redis_client: redis.Redis, keys: Keys) -> None:
    gate = Gate(redis_client, keys, message=lua_message(Celery("tests", set_as_current=False)))
    tenants = [f"t{number:03}" for number in range(20)]

    gate.remind(PIPELINE, [Reminder(tenant, 200) for tenant in tenants])

    texts: Any = redis_client.lrange(keys.queue(Queue.FIRST), 0, -1)
    messages = [json.loads(text) for text in texts]
    assert len({message["headers"]["id"] for message in messages}) == len(tenants)
    assert len({message["properties"]["delivery_tag"] for message in messages}) == len(tenants)
    tokens = [status.token for status in gate.look(PIPELINE, tenants)]
    assert tokens == sorted({str(token) for token in tokens})


def test_who_has_a_run_in_the_same_call_takes_the_room_of_the_next(redis_client: redis.Redis, keys: Keys) -> None:
    gate = Gate(redis_client, keys, message=lua_message(Celery("tests", set_as_current=False)))
    redis_client.lpush(keys.queue(Queue.FIRST), *["another run"] * (MOST_SENT - 2))

    answers = gate.remind(PIPELINE, [Reminder(tenant, 200) for tenant in "abcd"])

    assert answers == [Answer.STARTED] * 2 + [Answer.POSTPONED] * 2


def test_who_is_found_waits_for_its_turn_and_once(crowd: Crowd) -> None:
    assert remind(crowd, "a", looked=True) == [Answer.POSTPONED]
    assert remind(crowd, "a", looked=True) == [Answer.ABSORBED]
    assert remind(crowd, "a") == [Answer.ABSORBED]
    crowd.gate.hand_over(crowd.gate.turns(10)[1])
    assert run(crowd, "a") is Answer.FINISHED
    assert crowd.gate.turns(10) == (0, [])


def test_the_first_event_of_a_tenant_that_was_found_does_not_wait_for_its_turn(crowd: Crowd) -> None:
    remind(crowd, "b", "a", looked=True)
    assert crowd.published == []

    assert crowd.gate.notify(PIPELINE, "a", BURSTS) is Answer.STARTED
    assert crowd.published == [(Queue.FIRST, "a")]
    assert run(crowd, "a") is Answer.LINGERING
    crowd.gate.hand_over(crowd.gate.turns(10)[1])
    assert crowd.published == [(Queue.FIRST, "a"), (Queue.NEXT, "b")], "its turn is void"


def test_who_has_more_to_do_waits_for_its_turn_also_where_an_event_comes(crowd: Crowd) -> None:
    remind(crowd, "a", "b", looked=True)
    crowd.gate.hand_over(crowd.gate.turns(1)[1])
    crowd.begin("a")
    assert crowd.settle("a", Outcome.MORE, BURSTS) is Answer.POSTPONED

    assert crowd.gate.notify(PIPELINE, "a", BURSTS) is Answer.ABSORBED
