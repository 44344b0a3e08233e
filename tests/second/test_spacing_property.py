"""Random events, criteria, run durations and clock steps against a plain model of what a tenant may expect."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from taskbridge.declaring.batch import Batch
from taskbridge.gate import Answer
from taskbridge.worker.poller import poll_changes, reconcile
from tests.second.world import ERROR, MINUTE, WARNING, World

DELAYS = {"ERROR": ERROR.delay_ms, "WARNING": WARNING.delay_ms}

levels = st.sampled_from(("ERROR", "WARNING"))
services = st.sampled_from(("A", "B"))
spans = st.sampled_from((0, 500, 30_000, 4 * MINUTE * 1000, 5 * MINUTE * 1000, 11 * MINUTE * 1000, 20 * MINUTE * 1000))
during = st.lists(st.tuples(services, levels), max_size=3)
an_event = st.tuples(st.just("event"), services, levels)
a_run = st.tuples(st.just("run"), spans, during)
time_passes = st.tuples(st.just("time"), spans, st.none())
redis_is_lost = st.tuples(st.just("lost"), st.none(), st.none())
# Long histories, and in most of them Redis is not lost: once it is, spacing cannot be held against it.
steps = st.lists(st.one_of(an_event, a_run, a_run, time_passes), min_size=12, max_size=40)
histories = st.one_of(
    steps, steps, steps, st.tuples(steps, redis_is_lost, steps).map(lambda three: [*three[0], three[1], *three[2]])
)


@dataclass
class Expected:
    """One tenant in plain words: what waits, and when its records were last taken."""

    waiting: dict[str, str] = field(default_factory=dict)
    taken: list[str] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)


class Check:
    """Drives the world and holds every answer against the model."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.tenants = {"A": Expected(), "B": Expected()}
        self.lost_redis = False
        world.batches.clear()
        world.meanwhile = self._during
        self.duration = 0
        self.events: list[tuple[str, str]] = []

    def event(self, service: str, level: str) -> None:
        tenant = self.tenants[service]
        before, published = self.world.due(service), self.world.published()
        quiet = not tenant.waiting and before is None
        recorded = self.world.record(level, service)
        tenant.waiting[recorded.message_id] = level
        spaced = not tenant.starts or tenant.starts[-1] + DELAYS["WARNING"] <= self.world.now
        if quiet and spaced and published == 0:
            assert recorded.answer is Answer.STARTED, "the first event of a quiet tenant is published at once"
        after = self.world.due(service)
        if before is not None and after is not None:
            assert after <= before, "no event pushes a run back"
        if after is not None and tenant.starts and not self.lost_redis:
            assert after <= tenant.starts[-1] + DELAYS[level], "an ERROR pulls a waiting WARNING forward"

    def run(self, duration: int, events: list[tuple[str, str]]) -> None:
        self.duration, self.events = duration, events
        self.world.fire_due()
        while self.world.run_one():
            pass
        for service, start, ids in self.world.batches:
            self._ran(service, start, ids)
        self.world.batches.clear()
        for service, tenant in self.tenants.items():
            if tenant.waiting and tenant.starts and not self.lost_redis:
                due = self.world.due(service)
                smallest = min(DELAYS[level] for level in tenant.waiting.values())
                assert due == tenant.starts[-1] + smallest, "what came during a run is due by its smallest delay"

    def lose_redis(self) -> None:
        """All of Redis is lost, and the deadlines are rebuilt from Postgres."""
        poll_changes(self.world.runtime, "log-alerts")
        self.world.runtime.redis.flushdb()
        self.lost_redis = True
        reconcile(self.world.runtime, "log-alerts")

    def _during(self, batch: Batch) -> None:
        """What happens while a run works: time passes, and events come that it does not see."""
        self.world.gate.us += self.duration * 1000
        events, self.events = self.events, []
        for service, level in events:
            recorded = self.world.record(level, service)
            self.tenants[service].waiting[recorded.message_id] = level
            assert recorded.message_id not in {record.external_id for record in batch}

    def _ran(self, service: str, start: int, ids: list[str]) -> None:
        tenant = self.tenants[service]
        assert set(ids) <= set(tenant.waiting), "a run takes what waits for its own tenant, once"
        if tenant.starts and not self.lost_redis:
            smallest = min(DELAYS[tenant.waiting[one]] for one in ids)
            assert start - tenant.starts[-1] >= smallest - 1, "two runs are closer than what waited allows"
        for one in ids:
            tenant.taken.append(one)
            del tenant.waiting[one]
        tenant.starts.append(start)


@settings(
    max_examples=20,
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    phases=(Phase.explicit, Phase.generate, Phase.shrink),
)
@given(steps=histories)
def test_runs_are_spaced_by_what_waited_and_nothing_is_lost(world: World, steps: list[tuple[str, Any, Any]]) -> None:
    fresh(world)
    check = Check(world)
    for step, first, second in steps:
        if step == "event":
            check.event(first, second)
        elif step == "time":
            world.go_to(world.now + first)
        elif step == "run":
            check.run(first, second)
        elif not check.lost_redis:
            check.lose_redis()
    # When time passes and runs go on, everything has been taken, once.
    for _ in range(4):
        world.go_to(world.now + 20 * MINUTE * 1000)
        check.run(0, [])
    for tenant in check.tenants.values():
        assert tenant.waiting == {}
        assert len(tenant.taken) == len(set(tenant.taken))
    assert world.gate.active("log-alerts") == []


def fresh(world: World) -> None:
    """Forget the example before this one; the clock goes on."""
    world.runtime.redis.flushdb()
    with world.runtime.engine.begin() as connection:
        connection.exec_driver_sql("TRUNCATE taskbridge.records, taskbridge.messages, taskbridge.sync_cursors")
