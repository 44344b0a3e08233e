"""Tenants with more to do than one run gets through: they take turns, and nobody's deadline waits behind them."""

from __future__ import annotations

from collections import deque

import pytest

from taskbridge.common.run_key import RunKey
from taskbridge.gate import Answer, Begun, Blame, Outcome, Queue, Reminder, Settlement, State
from taskbridge.gate.constants import Constant
from taskbridge.process.runtime import runtime_of
from taskbridge.worker.ticker import fire_due, free_for_turns
from tests.deployment import Deployment
from tests.gate.crowd import PIPELINE, SPACING, Crowd
from tests.runs import begin, settle

MANY = 100
RUN_MS = 1_000


class Slots:
    """Workers with so many slots: first events first, each run takes a second of the injected clock."""

    def __init__(self, crowd: Crowd, slots: int) -> None:
        self.crowd, self.slots = crowd, slots
        self.queues: dict[Queue, deque[str]] = {queue: deque() for queue in Queue}
        self.on: deque[str] = deque()
        self.turns: list[str] = []
        self.longest = 0

    def take(self) -> None:
        """Let free slots take messages."""
        self._collect()
        while len(self.on) < self.slots:
            queue = next((queue for queue in self.queues.values() if queue), None)
            if queue is None:
                return
            tenant = queue.popleft()
            if isinstance(self.crowd.begin(tenant), Begun):
                self.on.append(tenant)
                self.turns.append(tenant)
            self._collect()

    def end(self, outcome: Outcome = Outcome.MORE) -> None:
        """Let the oldest run end."""
        self.crowd.settle(self.on.popleft(), outcome, handled=1)
        self._collect()
        self.take()

    def tick(self) -> None:
        """Let a ticker look, as `fire_due` does."""
        self.crowd.client.delete(self.crowd.keys.ticking(PIPELINE))
        due = self.crowd.gate.tick(PIPELINE, 200)
        self.crowd.gate.expire(PIPELINE, due.tenants)
        if due.waiting:
            self.crowd.gate.publish_waiting(self.crowd.gate.fair_queue(self.slots - len(self.on)))
        self.take()

    def come_to_the_deadline_of(self, tenant: str) -> None:
        """Let the tenant's run fail: its next one begins within about one run of each slot."""
        self.crowd.fail(tenant, blame=Blame.NOBODY, retry_ms=1)
        self.turns.clear()
        self.crowd.passes(10)
        self.tick()
        for _ in range(self.slots + 2):
            self.end()
        assert tenant in self.turns, self.turns
        assert self.turns.index(tenant) <= self.slots + 1

    def _collect(self) -> None:
        for queue, tenant in self.crowd.published:
            self.queues[queue].append(tenant)
        self.crowd.published.clear()
        self.longest = max(self.longest, len(self.queues[Queue.NEXT]))


def backlog(crowd: Crowd, slots: Slots, count: int = MANY) -> list[str]:
    """Let so many tenants have more to do than a run gets through."""
    names = [f"t{at:03}" for at in range(count)]
    crowd.notify(*names)
    slots.take()
    for _ in names:
        slots.end()
    slots.longest = 0
    slots.turns = list(slots.on)
    return names


@pytest.mark.parametrize("slots", [1, 4])
def test_a_deadline_behind_the_backlog_of_others(crowd: Crowd, slots: int) -> None:
    workers = Slots(crowd, slots)
    backlog(crowd, workers)
    for _ in range(3):
        workers.end()
    crowd.start("late")
    crowd.published.clear()  # its first run has begun

    workers.come_to_the_deadline_of("late")


def outage(crowd: Crowd, count: int = MANY) -> list[str]:
    """Let the circuit open, so many tenants come and wait, and the first of them begin to probe."""
    crowd.another_says_so()
    crowd.fails(*["opener"] * 4)
    names = [f"t{at:05}" for at in range(count)]
    crowd.put_in_queue(*names)
    assert crowd.deadline_passes(names[0]) is Answer.PUBLISHED
    assert isinstance(crowd.begin(names[0]), Begun)
    crowd.published.clear()
    return names


@pytest.mark.parametrize("slots", [1, 4])
def test_a_deadline_after_an_outage_for_which_many_waited(crowd: Crowd, slots: int) -> None:
    workers = Slots(crowd, slots)
    names = outage(crowd)
    crowd.settle(names[0], handled=1)
    workers.tick()
    crowd.start("late")
    crowd.published.clear()  # its first run has begun

    workers.come_to_the_deadline_of("late")

    assert workers.longest <= slots + 1


@pytest.mark.parametrize("count", [1, 501, 1_200])
def test_all_who_waited_for_an_outage_have_their_turns_in_their_order(crowd: Crowd, count: int) -> None:
    names = outage(crowd, count)

    crowd.settle(names[0], Outcome.MORE, handled=1)

    assert crowd.wait_queue() == []
    assert crowd.turns() == [*names[1:], "opener"]
    assert 0 < crowd.lifetime(crowd.keys.fair_queue) <= Constant.DAY_MS


def test_a_pipeline_after_its_outage_takes_turns_with_the_others(crowd: Crowd) -> None:
    found(crowd, "bulk", 100)
    names = outage(crowd, 100)
    crowd.settle(names[0], Outcome.MORE, handled=1)
    found(crowd, "orders", 12)

    members = crowd.gate.fair_queue(37)

    assert [member for member in members if member.startswith("orders")] == [f"orders:t{at:05}" for at in range(12)]
    assert sum(member.startswith("bulk") for member in members) in (12, 13)


def waits_of_all(crowd: Crowd, count: int = MANY) -> list[str]:
    """Let the downstream ask all to wait, and so many tenants come."""
    crowd.start("first")
    crowd.settle("first", Outcome.RETRY, retry_ms=1_000, failed=False, all_wait=True)
    names = [f"t{at:05}" for at in range(count)]
    crowd.put_in_queue(*names)
    crowd.until(1_000)
    crowd.published.clear()
    return names


def test_a_deadline_after_a_wait_of_all(crowd: Crowd) -> None:
    workers = Slots(crowd, 4)
    waits_of_all(crowd)
    workers.tick()
    while crowd.wait_queue() or len(workers.queues[Queue.NEXT]) > workers.slots:
        crowd.passes(10)
        workers.end(Outcome.DONE)
        workers.tick()
    assert workers.longest < Constant.SLOW_START_ENDS
    crowd.start("late")
    crowd.published.clear()  # its first run has begun

    workers.come_to_the_deadline_of("late")


def test_the_slow_start_of_a_pipeline_without_a_cap_ends_and_the_others_have_their_turns(crowd: Crowd) -> None:
    names = waits_of_all(crowd)
    circuit = crowd.keys.circuit(PIPELINE)
    doubled = int(Constant.SLOW_START_ENDS).bit_length() - 2
    for ended in range(doubled):
        crowd.expire(names[ended])
        assert isinstance(crowd.begin(names[ended]), Begun)
        crowd.settle(names[ended], handled=1)
        assert crowd.client.hget(circuit, "width") == str(2 ** (ended + 1))
        assert crowd.turns() == []
    kept = Constant.SLOW_START_ENDS // 2
    assert len(crowd.slots()) == kept, "as many as may be on"
    crowd.expire(names[doubled])
    assert isinstance(crowd.begin(names[doubled]), Begun)

    crowd.settle(names[doubled], handled=1)

    assert crowd.client.hget(circuit, "width") is None
    assert crowd.wait_queue() == []
    # The next one was given its turn.
    assert crowd.turns() == [*names[doubled + kept + 1 :], "first"]


@pytest.mark.parametrize("slots", [1, 4])
def test_a_second_turn_before_all_others_had_theirs(crowd: Crowd, slots: int) -> None:
    workers = Slots(crowd, slots)
    backlog(crowd, workers)

    for _ in range(2 * MANY):
        crowd.passes(RUN_MS // slots)
        workers.end()
        workers.tick()

    first, second = workers.turns[:MANY], workers.turns[MANY : 2 * MANY]
    assert sorted(set(first)) == sorted(first)
    assert sorted(set(second)) == sorted(second)
    assert second == first


@pytest.mark.parametrize(("slots", "count"), [(1, 1), (1, MANY), (4, 2), (4, MANY)])
def test_a_slot_that_is_idle_while_somebody_waits(crowd: Crowd, slots: int, count: int) -> None:
    workers = Slots(crowd, slots)
    backlog(crowd, workers, count)

    for _ in range(3 * count):
        crowd.passes(RUN_MS // slots)
        workers.end()
        assert len(workers.on) == min(slots, count)


def test_a_backlog_in_the_queue(crowd: Crowd) -> None:
    workers = Slots(crowd, 4)
    backlog(crowd, workers)

    for _ in range(MANY):
        crowd.passes(RUN_MS // 4)
        workers.end()
        workers.tick()

    assert workers.longest <= 4


def test_slots_that_come_free_with_nothing_to_hand_on_are_filled_again(crowd: Crowd) -> None:
    workers = Slots(crowd, 4)
    backlog(crowd, workers)
    workers.on.clear()  # A worker was killed.

    workers.tick()

    assert len(workers.on) == 4


def test_tenants_whose_turns_were_lost_come_back_by_their_deadlines(crowd: Crowd) -> None:
    crowd.start("a", "b")
    crowd.settle("a", Outcome.MORE)
    crowd.settle("b", Outcome.MORE)
    crowd.client.delete(crowd.keys.fair_queue)

    assert crowd.deadline_passes("b") is Answer.PUBLISHED
    assert isinstance(crowd.begin("b"), Begun)


def test_the_message_of_a_turn_that_gets_lost_is_published_again(crowd: Crowd) -> None:
    crowd.start("a")
    crowd.settle("a", Outcome.MORE)

    assert crowd.deadline_passes("a") is Answer.REPUBLISHED
    assert crowd.client.zcard(crowd.keys.in_flight) == 1, "it is queued once"
    assert isinstance(crowd.begin("a"), Begun)
    assert crowd.client.zcard(crowd.keys.in_flight) == 0


def test_pipelines_take_turns_with_each_other(crowd: Crowd) -> None:
    for pipeline in ("one", "two"):
        for name in ("x", "y", "z"):
            crowd.gate.notify(pipeline, name, SPACING)
            begin(crowd.gate, RunKey(pipeline, name, crowd.tokens[name]))
            settle(crowd.gate, RunKey(pipeline, name, crowd.tokens[name]), Settlement(Outcome.MORE), SPACING)

    assert crowd.gate.fair_queue(10) == ["one:y", "two:x", "one:z", "two:y", "two:z"]


def found(crowd: Crowd, pipeline: str, count: int) -> None:
    crowd.gate.remind(pipeline, [Reminder(f"t{at:05}", 0) for at in range(count)], by_reconciler=True)


def served(crowd: Crowd, count: int) -> list[str]:
    """Give so many turns, one after the other, and let each of these tenants have no more to do."""
    members = []
    for _ in range(count):
        (member,) = crowd.gate.fair_queue(1)
        pipeline, _, tenant = member.partition(":")
        crowd.gate.publish_waiting([member])
        key = RunKey(pipeline, tenant, crowd.tokens[tenant])
        assert isinstance(begin(crowd.gate, key), Begun)
        settle(crowd.gate, key, Settlement(Outcome.DONE), SPACING, most_in_flight=0)
        members.append(member)
    return members


@pytest.mark.parametrize("slots", [1, 4])
def test_lone_tenants_beside_10_000_with_a_backlog(crowd: Crowd, slots: int) -> None:
    workers = Slots(crowd, slots)
    found(crowd, PIPELINE, 10_000)
    workers.tick()
    for _ in range(2 * slots):
        workers.end()
    crowd.start("due")
    crowd.published.clear()  # its first run has begun
    crowd.fail("due", blame=Blame.NOBODY, retry_ms=1)
    crowd.passes(10)
    workers.turns.clear()

    # The poller finds one, another has an event, and the deadline of the third has passed.
    assert crowd.gate.remind(PIPELINE, [Reminder("found", 0)]) == [Answer.STARTED]
    crowd.notify("event")
    workers.tick()
    for _ in range(slots + 3):
        workers.end()

    lone = ["found", "event", "due"]
    assert [tenant for tenant in workers.turns if tenant in lone] == lone
    assert workers.turns[:2] == ["found", "event"]
    assert workers.longest <= slots + 1


def test_few_found_tenants_of_a_pipeline_wait_behind_the_thousands_of_another(crowd: Crowd) -> None:
    found(crowd, "bulk", 10_000)
    served(crowd, 10)
    found(crowd, "orders", 12)

    members = served(crowd, 25)

    orders = [member for member in members if member.startswith("orders")]
    assert orders == [f"orders:t{at:05}" for at in range(12)]
    assert [member for member in members if member.startswith("bulk")] == [f"bulk:t{at:05}" for at in range(10, 23)]


def test_a_pipeline_that_had_many_turns_while_nobody_else_waited_has_its_share_all_the_same(crowd: Crowd) -> None:
    found(crowd, "bulk", 200)
    served(crowd, 150)
    found(crowd, "orders", 100)
    served(crowd, 20)
    found(crowd, "bulk", 300)

    members = served(crowd, 40)

    assert sum(member.startswith("bulk") for member in members) == 20


def test_a_pipeline_pays_for_turns_that_it_did_not_need(crowd: Crowd) -> None:
    """All of its tenants had an event: the next that is found stands where the pipeline's first did."""
    found(crowd, "bulk", 1_000)
    found(crowd, "orders", 500)
    for at in range(500):
        assert crowd.gate.notify("orders", f"t{at:05}", SPACING) is Answer.STARTED
    crowd.gate.remind("orders", [Reminder("next", 0)], by_reconciler=True)

    assert "orders:next" in served(crowd, 3)


@pytest.mark.parametrize("lost", ["fair_queue", "virtual_time"])
def test_turns_go_on_where_their_tags_or_their_set_are_lost(crowd: Crowd, lost: str) -> None:
    found(crowd, "bulk", 20)
    crowd.client.delete(getattr(crowd.keys, lost))
    found(crowd, "orders", 20)
    crowd.gate.remind("bulk", [Reminder("late", 0)], by_reconciler=True)

    members = served(crowd, 21 if lost == "fair_queue" else 41)

    assert "bulk:late" in members[:3]
    assert crowd.client.zcard(crowd.keys.fair_queue) == 0


def test_a_slot_that_is_idle_for_a_moment_is_not_for_turns_while_first_events_wait(deployment: Deployment) -> None:
    runtime = runtime_of(deployment.app)
    first, following = runtime.keys.queues

    assert free_for_turns(runtime, {first, following}, 3) == 3
    deployment.notify_event.delay("acme")
    assert free_for_turns(runtime, {first, following}, 3) == 0


def test_a_worker_that_serves_first_events_only_gives_no_turns(deployment: Deployment) -> None:
    runtime = runtime_of(deployment.app)
    first, following = runtime.keys.queues
    deployment.notify_event.delay("acme")

    assert free_for_turns(runtime, {first}, 3) == 0
    assert free_for_turns(runtime, {following}, 3) == 3


def test_a_ticker_gives_turns_where_no_run_ends(deployment: Deployment) -> None:
    runtime = runtime_of(deployment.app)
    for name in ("a", "b"):
        runtime.gate.notify("invoices", name, SPACING)
        token = runtime.gate.look("invoices", [name])[0].token
        assert token is not None
        assert isinstance(begin(runtime.gate, RunKey("invoices", name, token)), Begun)
        settle(runtime.gate, RunKey("invoices", name, token), Settlement(Outcome.MORE), SPACING)
    token = runtime.gate.look("invoices", ["a"])[0].token
    assert token is not None
    begin(runtime.gate, RunKey("invoices", "a", token))

    fire_due(runtime)

    assert runtime.gate.look("invoices", ["b"])[0].state is State.QUEUED
