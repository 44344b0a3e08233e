"""The cap on a pipeline's runs, and the wait queue."""

from __future__ import annotations

from itertools import pairwise

import pytest
import redis

from taskbridge.common.run_key import RunKey
from taskbridge.declaring.policy import Spacing
from taskbridge.gate import Answer, Begun, Keys, Outcome, Queue, State
from tests.gate.crowd import PIPELINE, TIMING, Crowd

LEASE = Spacing(delay=0, lease=1_200)


@pytest.fixture
def crowd(redis_client: redis.Redis, keys: Keys) -> Crowd:
    return Crowd(redis_client, keys, most_runs=2)


def test_as_many_runs_are_on_as_the_pipeline_may_have_and_the_others_wait(crowd: Crowd) -> None:
    crowd.start("a", "b")

    crowd.put_in_queue("c", "d")

    assert crowd.slots() == {"a", "b"}
    assert crowd.wait_queue() == ["c", "d"]
    status = crowd.status("c")
    assert (status.state, status.held, status.runs) == (State.WAITING, True, 0)
    assert crowd.due("c") == 1 + TIMING.republish, "for the case that nobody calls it"


@pytest.mark.parametrize(
    ("outcome", "spacing", "answer"),
    [
        (Outcome.DONE, Spacing(delay=0), Answer.FINISHED),
        (Outcome.DONE, LEASE, Answer.LINGERING),
        (Outcome.RETRY, Spacing(delay=0), Answer.HELD),
        (Outcome.STALE, Spacing(delay=0), Answer.REISSUED),
        (Outcome.MORE, Spacing(delay=0), Answer.POSTPONED),
    ],
)
def test_a_run_that_ends_calls_the_head_of_the_wait_queue_and_keeps_its_slot_for_it(
    crowd: Crowd, outcome: Outcome, spacing: Spacing, answer: Answer
) -> None:
    crowd.notify("a", spacing=spacing)
    crowd.begin("a")
    crowd.start("b")
    crowd.put_in_queue("c", "d")
    crowd.published.clear()

    assert crowd.settle("a", outcome, spacing, owner="9999999999999999-ffffffffffff") is answer

    own = [(Queue.NEXT, "a")] if answer is Answer.REISSUED else []
    assert crowd.published == [*own, (Queue.NEXT, "c")], "at once, and after what the run says of itself"
    assert crowd.status("c").state is State.QUEUED
    assert crowd.slots() == {"b", "c"}
    crowd.notify("newcomer")
    assert crowd.begin("newcomer") is Answer.POSTPONED
    assert isinstance(crowd.begin("c"), Begun)
    assert crowd.slots() == {"b", "c"}
    assert crowd.wait_queue() == ["d", "newcomer", "a"] if answer is Answer.POSTPONED else ["d", "newcomer"]


def test_first_events_stand_before_continuations_and_each_in_the_order_in_which_they_came(crowd: Crowd) -> None:
    crowd.start("a", "b")
    crowd.put_in_queue("first", "second")
    crowd.settle("a", Outcome.MORE)
    crowd.begin("first")
    crowd.passes(1)
    crowd.settle("b", Outcome.MORE)
    crowd.begin("second")
    crowd.put_in_queue("0 third")

    assert crowd.wait_queue() == ["0 third", "a", "b"]


def test_who_is_not_called_comes_by_itself_and_then_waits_as_long_again(crowd: Crowd) -> None:
    crowd.start("a", "b")
    crowd.put_in_queue("c")
    times = []
    for _ in range(10):
        crowd.deadline_passes("c")
        for other in "ab":
            crowd.gate.beat(RunKey(PIPELINE, other, crowd.tokens[other]))
            crowd.client.zadd(crowd.keys.running(PIPELINE), {other: crowd.gate.us})
        times.append(crowd.now())
        assert crowd.begin("c") is Answer.POSTPONED

    waits = [after - before for before, after in pairwise(times)]
    assert waits == [4_000, 8_000, 16_000, 32_000, 64_000, 128_000, 256_000, 300_000, 300_000]


def test_a_slot_that_was_kept_and_that_nobody_takes_is_free_again_after_a_while(crowd: Crowd) -> None:
    crowd.start("a", "b")
    crowd.put_in_queue("c", "d")
    crowd.settle("a")
    crowd.gate.beat(RunKey(PIPELINE, "b", crowd.tokens["b"]))
    crowd.passes(TIMING.republish)
    assert crowd.begin_of("newcomer") is Answer.POSTPONED

    crowd.passes(1)

    assert isinstance(crowd.begin_of("one more"), Begun)
    assert crowd.begin("c") is Answer.POSTPONED, "its slot is another's now"
    assert crowd.wait_queue() == ["c", "d", "newcomer"]


def test_the_slot_of_a_run_that_died_is_free_for_another_and_its_successor_waits(crowd: Crowd) -> None:
    crowd.start("a", "b")
    crowd.passes(TIMING.runner_ttl - 10)
    crowd.gate.beat(RunKey(PIPELINE, "b", crowd.tokens["b"]))
    crowd.put_in_queue("c")
    crowd.passes(20)

    assert isinstance(crowd.begin_of("d"), Begun)
    assert crowd.expire("a") == [Answer.REISSUED]
    assert crowd.begin("a") is Answer.POSTPONED
    assert crowd.slots() == {"b", "d"}


def test_the_successor_of_a_run_that_died_takes_its_slot_where_nobody_else_did(crowd: Crowd) -> None:
    crowd.start("a", "b")
    crowd.put_in_queue("c")
    crowd.gate.beat(RunKey(PIPELINE, "b", crowd.tokens["b"]))

    assert crowd.deadline_passes("a") is Answer.REISSUED
    assert isinstance(crowd.begin("a"), Begun)
    crowd.settle("a")
    assert crowd.status("c").state is State.QUEUED


def test_a_frozen_run_whose_slot_was_taken_has_none_to_give_away(crowd: Crowd) -> None:
    crowd.start("a", "b")
    crowd.passes(TIMING.runner_ttl + 1)
    crowd.gate.beat(RunKey(PIPELINE, "b", crowd.tokens["b"]))
    crowd.start("c")
    crowd.put_in_queue("d")

    assert crowd.gate.beat(RunKey(PIPELINE, "a", crowd.tokens["a"])), "no ticker has looked yet"
    assert crowd.slots() == {"b", "c"}
    assert crowd.settle("a") is Answer.FINISHED
    assert (crowd.slots(), crowd.wait_queue()) == ({"b", "c"}, ["d"])


def test_a_called_tenant_whose_message_gets_lost_comes_back_by_its_deadline(crowd: Crowd) -> None:
    crowd.start("a", "b")
    crowd.put_in_queue("c")
    crowd.settle("a")

    assert crowd.due("c") == 1 + TIMING.republish
    assert crowd.deadline_passes("c") is Answer.REPUBLISHED
    assert isinstance(crowd.begin("c"), Begun)


@pytest.mark.parametrize("lost", ["wait_queue", "running"])
def test_what_all_share_is_lost_and_nobody_waits_for_ever(crowd: Crowd, lost: str) -> None:
    crowd.start("a", "b")
    crowd.put_in_queue("c", "d")
    crowd.client.delete(getattr(crowd.keys, lost)(PIPELINE))
    crowd.settle("a")
    crowd.settle("b")

    for tenant in "cd":
        assert crowd.deadline_passes(tenant) in (Answer.PUBLISHED, Answer.REPUBLISHED)
        assert isinstance(crowd.begin(tenant), Begun)


def test_wait_queue_and_slots_go_by_themselves_when_nobody_needs_them(crowd: Crowd) -> None:
    crowd.start("a", "b")
    crowd.put_in_queue("c", "d")
    assert crowd.lifetime(crowd.keys.wait_queue(PIPELINE)) > 0

    for tenant in "ab":
        crowd.settle(tenant)
    assert crowd.lifetime(crowd.keys.running(PIPELINE)) > 0, "kept for tenants that may never come"
    for tenant in "cd":
        assert isinstance(crowd.begin(tenant), Begun)
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
