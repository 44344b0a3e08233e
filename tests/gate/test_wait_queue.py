"""The cap on a pipeline's runs, and the wait queue. `test_admission.py` has their tables, and what is lost of them."""

from __future__ import annotations

import pytest
import redis

from taskbridge.common.run_key import RunKey
from taskbridge.gate import Answer, Begun, Keys, Outcome, Queue, State
from tests.gate.crowd import PIPELINE, TIMING, Crowd


@pytest.fixture
def crowd(redis_client: redis.Redis, keys: Keys) -> Crowd:
    return Crowd(redis_client, keys, most_runs=2)


def test_as_many_runs_are_on_as_the_pipeline_may_have_and_each_that_ends_calls_the_next(crowd: Crowd) -> None:
    crowd.start("a", "b")
    crowd.put_in_queue("c", "d")
    status = crowd.status("c")
    assert (status.state, status.held, status.runs) == (State.WAITING, True, 0)
    assert crowd.due("c") == 1 + TIMING.republish, "for the case that nobody calls it"
    crowd.published.clear()

    assert crowd.settle("a") is Answer.FINISHED
    assert crowd.published == [(Queue.NEXT, "c")], "at once"
    assert crowd.slots() == {"b", "c"}
    crowd.notify("newcomer")
    assert crowd.begin("newcomer") is Answer.POSTPONED, "the slot is kept"
    assert isinstance(crowd.begin("c"), Begun)
    # First events stand before continuations.
    assert crowd.settle("b", Outcome.MORE) is Answer.POSTPONED
    assert isinstance(crowd.begin("d"), Begun)
    crowd.put_in_queue("0 latest")
    assert crowd.wait_queue() == ["newcomer", "0 latest", "b"]

    # Who is called and does not come loses its slot, and comes back by its deadline.
    crowd.settle("c")
    crowd.gate.beat(RunKey(PIPELINE, "d", crowd.tokens["d"]))
    crowd.passes(TIMING.republish + 1)
    assert isinstance(crowd.begin_of("one more"), Begun)
    assert crowd.begin("newcomer") is Answer.POSTPONED
    assert crowd.wait_queue() == ["newcomer", "0 latest", "b"]

    # Nothing stays.
    assert crowd.lifetime(crowd.keys.wait_queue(PIPELINE)) > 0
    for ends, following in zip(
        ("d", "one more", "newcomer", "0 latest", "b"), ("newcomer", "0 latest", "b"), strict=False
    ):
        crowd.settle(ends)
        assert isinstance(crowd.begin(following), Begun)
    for tenant in ("0 latest", "b"):
        assert crowd.lifetime(crowd.keys.running(PIPELINE)) > 0
        crowd.settle(tenant)
    assert list(crowd.client.scan_iter(f"{crowd.keys.prefix}:*")) == []


def test_a_cap_that_is_lowered_is_kept_once_the_runs_that_are_on_have_ended(crowd: Crowd) -> None:
    crowd.most_runs = 4
    crowd.start(*"abcd")
    crowd.most_runs = 2
    crowd.put_in_queue("e")
    for tenant in "ab":
        crowd.settle(tenant)
        assert crowd.begin("e") is Answer.POSTPONED, "it was called, and two others are on"
        assert "e" not in crowd.slots()

    crowd.settle("c")
    assert isinstance(crowd.begin("e"), Begun)
    assert crowd.slots() == {"d", "e"}
