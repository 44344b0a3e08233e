"""Whose a gate is: its owner keeps it through restarts and steps of the clock, and gives way when it is gone."""

from __future__ import annotations

import pytest
import redis

from taskbridge.declaring.policy import Spacing
from taskbridge.gate import Keys
from taskbridge.gate.constants import Constant
from tests.gate.crowd import PIPELINE, Crowd

OURS, THEIRS = ("system/1/taskbridge", "ours"), ("system/2/taskbridge", "theirs")
SECOND = 1_000


@pytest.fixture
def ours(crowd: Crowd) -> Crowd:
    """A gate that ours took."""
    assert take(crowd, OURS)
    return crowd


def take(crowd: Crowd, deployment: tuple[str, str], began_ms: int = 0) -> bool:
    return crowd.gate.own(*deployment, began_ms, [PIPELINE])[0] == ""


def test_a_deployment_that_is_down_for_a_while_keeps_its_gate(ours: Crowd) -> None:
    ours.passes(60 * SECOND)
    assert not take(ours, THEIRS)
    assert take(ours, OURS)


def test_one_that_left_work_keeps_it_for_a_day(ours: Crowd, redis_client: redis.Redis, keys: Keys) -> None:
    ours.gate.notify(PIPELINE, "acme", Spacing(delay=200, lease=1_200))
    ours.passes(3600 * SECOND)
    assert not take(ours, THEIRS)
    assert take(ours, OURS)
    assert 0 < redis_client.pttl(keys.owner) <= Constant.DAY_MS


def test_one_that_is_gone_for_good_gives_way_and_does_not_take_it_back(ours: Crowd) -> None:
    _, began_ms = ours.gate.own(*OURS)
    ours.passes(Constant.OWNER_MS)
    assert take(ours, THEIRS)
    # a worker of ours that was frozen meanwhile, and one that starts
    assert not take(ours, OURS, began_ms)
    assert not take(ours, OURS)


def test_a_clock_that_steps_back_gives_it_to_nobody_else(ours: Crowd) -> None:
    ours.passes(-3600 * SECOND)
    assert not take(ours, THEIRS)
    assert take(ours, OURS)
