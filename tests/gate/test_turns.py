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

    def _collect(self) -> None:
        for queue, tenant in self.crowd.published:
            self.queues[queue].append(tenant)
        self.crowd.published.clear()
        self.longest = max(self.longest, len(self.queues[Queue.NEXT]))


@pytest.mark.parametrize(("slots", "count"), [(1, 1), (1, MANY), (4, 2), (4, MANY)])
def test_tenants_with_more_to_do_take_turns_and_no_slot_is_idle(crowd: Crowd, slots: int, count: int) -> None:
    names = [f"t{at:03}" for at in range(count)]
    workers = Slots(crowd, slots)
    crowd.notify(*names)
    workers.take()
    for _ in names:
        workers.end()
    workers.longest, workers.turns = 0, list(workers.on)

    for _ in range(2 * count):
        crowd.passes(RUN_MS // slots)
        workers.end()
        assert len(workers.on) == min(slots, count)
        workers.tick()

    first, second = workers.turns[:count], workers.turns[count : 2 * count]
    assert sorted(set(first)) == names
    assert second == first, "none has a second turn before all others had theirs"
    assert workers.longest <= slots
    waiting = len(crowd.turns())
    workers.on.clear()  # A worker was killed.
    workers.tick()
    assert len(workers.on) == min(slots, waiting)


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


def test_all_who_waited_for_an_outage_have_their_turns_in_their_order(crowd: Crowd) -> None:
    names = outage(crowd, 1_200)

    crowd.settle(names[0], Outcome.MORE, handled=1)

    assert crowd.wait_queue() == []
    assert crowd.turns() == [*names[1:], "opener"]
    assert 0 < crowd.lifetime(crowd.keys.fair_queue) <= Constant.DAY_MS


def test_the_slow_start_of_a_pipeline_without_a_cap_ends_and_the_others_have_their_turns(crowd: Crowd) -> None:
    crowd.start("first")
    crowd.settle("first", Outcome.RETRY, retry_ms=1_000, failed=False, all_wait=True)
    names = [f"t{at:05}" for at in range(MANY)]
    crowd.put_in_queue(*names)
    crowd.until(1_000)
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


def test_a_pipeline_that_had_many_turns_while_nobody_else_waited_has_its_share_all_the_same(crowd: Crowd) -> None:
    found(crowd, "bulk", 200)
    served(crowd, 150)
    found(crowd, "orders", 100)
    served(crowd, 20)
    found(crowd, "bulk", 300)

    members = served(crowd, 40)

    assert sum(member.startswith("bulk") for member in members) == 20


def test_a_ticker_gives_turns_where_no_run_ends_and_no_first_event_waits(deployment: Deployment) -> None:
    runtime = runtime_of(deployment.app)
    gate, (first, following) = runtime.gate, runtime.keys.queues

    def run_of(name: str) -> RunKey:
        return RunKey("invoices", name, str(gate.look("invoices", [name])[0].token))

    for name in ("a", "b"):
        gate.notify("invoices", name, SPACING)
        assert isinstance(begin(gate, run_of(name)), Begun)
        settle(gate, run_of(name), Settlement(Outcome.MORE), SPACING)
    begin(gate, run_of("a"))
    fire_due(runtime)
    assert gate.look("invoices", ["b"])[0].state is State.QUEUED

    # A slot that is idle for a moment is for first events; a worker that serves no others gives no turns.
    deployment.redis.delete(first)
    assert free_for_turns(runtime, {first, following}, 3) == 3
    deployment.notify_event.delay("acme")
    assert free_for_turns(runtime, {first, following}, 3) == 0
    assert free_for_turns(runtime, {first}, 3) == 0
    assert free_for_turns(runtime, {following}, 3) == 3
