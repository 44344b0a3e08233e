"""Whose a gate is: its owner keeps it through restarts and steps of the clock, and gives way when it is gone."""

from __future__ import annotations

import pytest
import redis

from taskbridge.declaring.policy import Spacing
from taskbridge.gate import Keys
from taskbridge.gate.constants import Constant
from taskbridge.testing.clock import InjectedClock

OURS, THEIRS = ("system/1/taskbridge", "ours"), ("system/2/taskbridge", "theirs")
PIPELINE = "invoices"
SECOND = 1_000


@pytest.fixture
def gate(redis_client: redis.Redis, keys: Keys) -> InjectedClock:
    """A gate that ours took."""
    made = InjectedClock(redis_client, keys, publish=lambda *_: None)
    made.start_at(int(redis_client.time()[0]) * 1_000_000)
    assert take(made, OURS)
    return made


def take(gate: InjectedClock, deployment: tuple[str, str], began_ms: int = 0) -> bool:
    return gate.own(*deployment, began_ms, [PIPELINE])[0] == ""


def passes(gate: InjectedClock, ms: int) -> None:
    gate.us += ms * 1000


def test_a_deployment_that_is_down_for_a_while_keeps_its_gate(gate: InjectedClock) -> None:
    passes(gate, 60 * SECOND)
    assert not take(gate, THEIRS)
    assert take(gate, OURS)


def test_one_that_left_work_keeps_it_for_a_day(gate: InjectedClock, redis_client: redis.Redis, keys: Keys) -> None:
    gate.notify(PIPELINE, "acme", Spacing(delay=200, lease=1_200))
    passes(gate, 3600 * SECOND)
    assert not take(gate, THEIRS)
    assert take(gate, OURS)
    assert 0 < redis_client.pttl(keys.owner) <= Constant.DAY_MS


def test_one_that_is_gone_for_good_gives_way_and_does_not_take_it_back(gate: InjectedClock) -> None:
    _, began_ms = gate.own(*OURS)
    passes(gate, Constant.OWNER_MS)
    assert take(gate, THEIRS)
    # a worker of ours that was frozen meanwhile, and one that starts
    assert not take(gate, OURS, began_ms)
    assert not take(gate, OURS)


def test_a_clock_that_steps_back_gives_it_to_nobody_else(gate: InjectedClock) -> None:
    passes(gate, -3600 * SECOND)
    assert not take(gate, THEIRS)
    assert take(gate, OURS)
