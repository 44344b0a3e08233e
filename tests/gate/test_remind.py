"""Reminders: what a tenant that has records, and no event, gets. The table of its states is walked elsewhere."""

from __future__ import annotations

import json
from typing import Any

import pytest
import redis
from celery import Celery

from taskbridge.declaring.policy import Spacing
from taskbridge.gate import Answer, Gate, Keys, Queue, Reminder
from taskbridge.gate.gate import AT_ONCE
from taskbridge.gate.message import lua_message
from tests.gate.crowd import PIPELINE, Crowd

BURSTS = Spacing(delay=200, lease=1_200)
MESSAGE = lua_message(Celery("tests", set_as_current=False))


HOUR_MS = 3_600_000


def test_each_tenant_of_a_call_is_delayed_by_its_own_last_run_and_by_no_clock_that_is_ahead(crowd: Crowd) -> None:
    spacing, now_ms = Spacing(delay=60_000, last_ttl=300_000), crowd.gate.us // 1000
    lasts = [("a", now_ms - 20_000), ("b", now_ms - 90_000), ("d", now_ms), ("e", now_ms + HOUR_MS)]
    crowd.gate.remember_last(PIPELINE, lasts, spacing)
    reminders = [*(Reminder(tenant, 60_000) for tenant in "abcde"), Reminder("f", 60_000, now_ms + HOUR_MS)]

    found = crowd.gate.remind(PIPELINE, reminders, most_in_flight=4)

    delayed, started = Answer.DELAYED, Answer.STARTED
    assert found == [delayed, started, started, delayed, delayed, delayed]
    due = {"a": 40_000, "d": 60_000, "e": 60_000, "f": 60_000}
    assert {tenant: crowd.due(tenant) for tenant in due} == pytest.approx(due, abs=1)


@pytest.mark.parametrize("broker", ["its own", "another server"])
def test_an_event_stands_behind_few_tenants_that_were_found(redis_client: redis.Redis, keys: Keys, broker: str) -> None:
    published: list[str] = []
    gate = Gate(redis_client, keys, publish=lambda _, __, tenant, ___: published.append(tenant))
    if broker == "its own":
        gate = Gate(redis_client, keys, message=MESSAGE)
    tenants = [f"{number:04}" for number in range(2 * AT_ONCE + 50)]

    answers = gate.remind(PIPELINE, [Reminder(tenant, 200) for tenant in tenants], most_in_flight=2)
    for at in range(50):
        answers += gate.remind("another", [Reminder(f"later {at}", 200)], most_in_flight=2)
    gate.notify(PIPELINE, "event", BURSTS)

    assert answers == [Answer.STARTED] * 2 + [Answer.POSTPONED] * (len(answers) - 2)
    queued = [json.loads(message["body"])[0][1] for message in messages(redis_client, keys)]
    assert (published or queued) == [*tenants[:2], "event"]
    assert gate.overdue(PIPELINE, 1_000) == [], "no deadline waits behind them"
    waiting = [member.partition(":") for member in gate.fair_queue(1_000)]
    assert [tenant for name, _, tenant in waiting if name == PIPELINE] == tenants[2:]


def messages(client: redis.Redis, keys: Keys) -> list[Any]:
    """Return those in the queue of first events, the oldest first."""
    texts: Any = client.lrange(keys.queue(Queue.FIRST), 0, -1)
    return [json.loads(text) for text in reversed(texts)]


def test_two_tenants_of_one_call_share_neither_a_message_nor_a_moment(redis_client: redis.Redis, keys: Keys) -> None:
    gate = Gate(redis_client, keys, message=MESSAGE)
    tenants = [f"t{number:03}" for number in range(20)]

    gate.remind(PIPELINE, [Reminder(tenant, 200) for tenant in tenants], most_in_flight=len(tenants))

    found = messages(redis_client, keys)
    assert len({message["headers"]["id"] for message in found}) == len(tenants)
    assert len({message["properties"]["delivery_tag"] for message in found}) == len(tenants)
    tokens = [status.token for status in gate.look(PIPELINE, tenants)]
    assert tokens == sorted({str(token) for token in tokens})
