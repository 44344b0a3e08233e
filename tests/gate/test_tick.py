"""One ticker at a time starts what is due, and none adds to a queue that is long enough."""

from __future__ import annotations

import pytest
import redis

from taskbridge.common.run_key import RunKey
from taskbridge.declaring.policy import Spacing
from taskbridge.gate import Begun, Gate, Keys
from taskbridge.gate.gate import MOST_DUE_IN_FLIGHT, TICKER_HOLDS_MS
from tests.runs import begin
from tests.waiting import wait_until

SPACING = Spacing(delay=60_000, last_ttl=120_000)


@pytest.fixture
def gates(redis_client: redis.Redis, keys: Keys) -> tuple[Gate, Gate]:
    """The gates of two workers. Their queues have the prefix of the keys, so that no other test's lie in them."""
    first, second = (
        Gate(redis_client, keys, publish=lambda *_: None, queue_prefix=f"{keys.prefix}:") for _ in range(2)
    )
    return first, second


def let_wait(gate: Gate, redis_client: redis.Redis, keys: Keys, **ahead_ms: int) -> None:
    """Give each tenant a deadline, so many milliseconds from now."""
    gate.notify_many([("invoices", tenant, SPACING) for tenant in ahead_ms])
    seconds, micros = map(int, redis_client.time())
    now = seconds * 1000 + micros // 1000
    redis_client.zadd(keys.due("invoices"), {tenant: now + ahead for tenant, ahead in ahead_ms.items()})


def test_it_tells_who_is_due_in_order_and_when_the_next_is(
    gates: tuple[Gate, Gate], redis_client: redis.Redis, keys: Keys
) -> None:
    let_wait(gates[0], redis_client, keys, later=60_000, c=-1, a=-3, b=-2)
    tenants, wait_ms, late_ms, _ = gates[0].tick("invoices", 10)
    assert tenants == ["a", "b", "c"]
    assert wait_ms is not None
    assert 50_000 < wait_ms <= 60_000
    assert late_ms is not None
    assert 3 <= late_ms < 10_000
    assert gates[0].tick("invoices", 2)[0] == ["a", "b"]


def test_a_second_ticker_is_told_nothing_until_the_first_is_done_or_dead(
    gates: tuple[Gate, Gate], redis_client: redis.Redis, keys: Keys
) -> None:
    first, second = gates
    let_wait(first, redis_client, keys, a=-1)
    assert first.tick("invoices", 10)[0] == ["a"]
    redis_client.persist(keys.ticking("invoices"))  # however slow this test is
    assert second.tick("invoices", 10)[0] == []
    assert first.tick("invoices", 10)[0] == ["a"], "it has the work to itself"
    wait_until(lambda: second.tick("invoices", 10)[0] == ["a"], "the first holds on no longer", 5)


def test_a_queue_that_is_long_enough_gets_no_more(
    gates: tuple[Gate, Gate], redis_client: redis.Redis, keys: Keys
) -> None:
    """What is queued is counted in the gate: the broker may be another server."""
    names = [f"t{at:03}" for at in range(MOST_DUE_IN_FLIGHT)]
    let_wait(gates[0], redis_client, keys, **dict.fromkeys(names, -2), late=-1)
    gates[0].expire("invoices", names)
    tenants, wait_ms, late_ms, _ = gates[0].tick("invoices", 10)
    assert (tenants, late_ms) == ([], None)
    assert wait_ms == TICKER_HOLDS_MS, "it looks again soon"
    # Another pipeline is not held up.
    gates[0].notify("others", "b", SPACING)
    redis_client.zadd(keys.due("others"), {"b": 0})
    assert gates[0].tick("others", 10)[0] == ["b"]

    token = gates[0].look("invoices", ["t000"])[0].token
    assert token is not None
    assert isinstance(begin(gates[0], RunKey("invoices", "t000", token)), Begun)

    assert gates[0].tick("invoices", 10)[0] == ["late"]
