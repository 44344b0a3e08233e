"""Which messages of the two queues are taken first, and where those lie that are put back.

That a message which still waits is not published again is in the table of the model.
"""

from __future__ import annotations

import pytest
import redis
from celery import Celery

from taskbridge.common.run_key import RunKey
from taskbridge.declaring.policy import Spacing
from taskbridge.gate import Begun, Keys, Outcome, Queue, Settlement, Timing
from taskbridge.gate.message import lua_message
from taskbridge.testing.clock import InjectedClock
from tests.runs import begin, settle

PIPELINE = "invoices"
SPACING = Spacing(delay=0)
TIMING = Timing(runner_ttl=5_000, republish=4_000)


@pytest.fixture
def gate(redis_client: redis.Redis, keys: Keys) -> InjectedClock:
    """A gate that pushes its messages itself."""
    made = InjectedClock(redis_client, keys, TIMING, message=lua_message(Celery("tests", set_as_current=False)))
    made.start_at(int(redis_client.time()[0]) * 1_000_000)
    return made


def token(gate: InjectedClock, tenant: str) -> str:
    found = gate.look(PIPELINE, [tenant])[0].token
    assert found is not None
    return found


def test_a_storm_of_first_events_leaves_each_fourth_place_to_a_continuation(
    gate: InjectedClock, redis_client: redis.Redis, keys: Keys
) -> None:
    firsts, nexts = [f"first-{at}" for at in range(14)], [f"next-{at}" for at in range(5)]
    for tenant in (*nexts, *firsts):
        gate.notify(PIPELINE, tenant, SPACING)
    for _ in nexts:
        redis_client.rpoplpush(keys.queue(Queue.FIRST), keys.queue(Queue.NEXT))

    taken = [message.run.tenant for message in gate.take(16, 16)[0]]

    assert taken == [*firsts[:3], nexts[0], *firsts[3:6], nexts[1], *firsts[6:9], nexts[2], *firsts[9:12], nexts[3]]
    assert [message.run.tenant for message in gate.take(16, 16)[0]] == [*firsts[12:], nexts[4]]
    assert gate.take(16, 16)[0] == []


def test_messages_that_are_put_back_lie_where_they_lay(
    gate: InjectedClock, redis_client: redis.Redis, keys: Keys
) -> None:
    for at in range(12):
        gate.notify(PIPELINE, f"tenant-{at}", SPACING)
    for _ in range(4):
        redis_client.rpoplpush(keys.queue(Queue.FIRST), keys.queue(Queue.NEXT))
    before = [redis_client.lrange(name, 0, -1) for name in keys.queues]

    gate.put_back(gate.take(9, 9)[0])

    assert [redis_client.lrange(name, 0, -1) for name in keys.queues] == before
    redis_client.delete(*keys.queues)


@pytest.mark.parametrize(
    ("outcome", "order"),
    [
        pytest.param(Outcome.STOPPED, ["a", "b"], id="its turn is not over"),
        pytest.param(Outcome.MORE, ["b", "a"], id="others waited longer"),
    ],
)
def test_who_comes_next_after_a_run_that_did_not_do_all(
    gate: InjectedClock, redis_client: redis.Redis, keys: Keys, outcome: Outcome, order: list[str]
) -> None:
    """Else a run that a worker gives back while first events keep coming would be the last again and again."""
    runs = []
    for tenant in ("a", "b"):
        gate.notify(PIPELINE, tenant, SPACING)
        runs.append(RunKey(PIPELINE, tenant, token(gate, tenant)))
        assert isinstance(begin(gate, runs[-1]), Begun)
    redis_client.delete(keys.queue(Queue.FIRST))
    settle(gate, runs[1], Settlement(Outcome.MORE), SPACING, most_in_flight=9)
    settle(gate, runs[0], Settlement(outcome), SPACING, most_in_flight=9)

    assert [message.run.tenant for message in gate.take(0, 9)[0]] == order

    redis_client.delete(*keys.queues)
