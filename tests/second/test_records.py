"""Records of pipelines with criteria: one per message, never another pipeline's, matched again when criteria change."""

from __future__ import annotations

import time
from functools import partialmethod

import pytest
from sqlalchemy import event

from taskbridge.declaring.criteria import Criterion
from taskbridge.declaring.pipeline import Pipeline
from taskbridge.declaring.policy import DelaySinceLastRun
from taskbridge.gate import Answer
from taskbridge.process.runtime import runtime_of
from taskbridge.producer.notify import notify_many, send
from taskbridge.producer.recording import record_event
from taskbridge.store.cursor import Cursors
from taskbridge.worker.poller import last_runs_restored, poll_changes, reconcile
from tests.second.world import MINUTE, PIPELINE, POLICY, World
from tests.waiting import wait_until


def declare(world: World, name: str, *criteria: Criterion) -> None:
    """Declare a pipeline whose handler notes what it is given; another one of the name is replaced."""
    pipelines = world.runtime.pipelines
    pipelines._declared.pop(name, None)
    pipelines.declare(Pipeline(name, world._take, DelaySinceLastRun(criteria), 500))


def at_the_servers_time(world: World) -> None:
    """Set the clock to that of the servers, by which keys end and Postgres dates runs."""
    seconds, microseconds = world.runtime.redis.time()
    world.gate.start_at(int(seconds) * 1_000_000 + int(microseconds))


def test_postgres_is_asked_once_for_the_delays_of_many_tenants(world: World) -> None:
    lasts: dict[str, int] = {}
    for tenant in "ABC":
        world.record("ERROR", tenant)
        world.run_all()
        lasts[tenant] = world.last_run(tenant) or 0
    with world.runtime.engine.begin() as connection:
        for level, tenant in (("WARNING", "A"), ("WARNING", "B"), ("ERROR", "B")):
            record_event(world.app, PIPELINE, {"level": level, "service": tenant}, connection=connection)
    asked: list[object] = []
    event.listen(world.runtime.engine, "checkout", lambda *it: asked.append(it))
    assert notify_many(world.app, ["A", "B", "C", "A"], PIPELINE) == [Answer.DELAYED] * 4
    assert len(asked) == 1
    minutes = {tenant: ((world.due(tenant) or 0) - last) / (MINUTE * 1000) for tenant, last in lasts.items()}
    # the smallest where nothing waits
    assert minutes == {"A": 15, "B": 5, "C": 5}
    events = {(PIPELINE, tenant): None for tenant in "ABC"}
    assert send(runtime_of(world.app), [*events.items()]) == [Answer.DELAYED] * 3
    assert len(asked) == 2


def test_a_record_that_nobody_notified_is_due_when_one_with_an_event_would_be(world: World) -> None:
    poll_changes(world.runtime, PIPELINE)
    with world.runtime.engine.begin() as connection:
        record_event(world.app, PIPELINE, {"level": "ERROR", "service": "A"}, connection=connection)
    poll_changes(world.runtime, PIPELINE)
    world.run_all()
    last = world.batches[0][1]
    with world.runtime.engine.begin() as connection:
        record_event(world.app, PIPELINE, {"level": "ERROR", "service": "A"}, connection=connection)
    # Its run is due five minutes after the last one, and never earlier, whoever looks.
    poll_changes(world.runtime, PIPELINE)
    assert world.due("A") == last + 5 * MINUTE * 1000


def test_what_waited_for_a_delay_comes_as_one_batch_however_slow_the_handler_is(world: World) -> None:
    world.inline.handle(world._take, policy=POLICY, pipeline=PIPELINE, latency_budget=0.001)
    world.meanwhile = lambda batch: time.sleep(0.01 * len(batch))
    sizes = [1, 1, 4, 4, 8]
    for number, size in enumerate(sizes):
        for _ in range(size):
            world.record("ERROR", f"service-{number}")
        world.run_all()
    assert [len(records) for _, _, records in world.batches] == sizes


@pytest.fixture
def two_last_runs(world: World, monkeypatch: pytest.MonkeyPatch) -> World:
    """A world where A and B have run, Redis has lost its data, and a page has room for one."""
    monkeypatch.setattr(Cursors, "last_runs", partialmethod(Cursors.last_runs, page=1))
    at_the_servers_time(world)
    for tenant in ("A", "B"):
        world.record("ERROR", tenant)
    world.run_all()
    world.runtime.redis.flushdb()
    return world


def test_a_redis_that_loses_its_data_while_last_runs_come_back_gets_all_of_them_anew(two_last_runs: World) -> None:
    world = two_last_runs
    restoring = last_runs_restored(world.runtime, PIPELINE)
    next(restoring)
    assert (world.last_run("A") is None, world.last_run("B") is None) == (False, True)
    world.runtime.redis.flushdb()
    for _ in restoring:
        pass
    assert world.last_run("A") is None
    reconcile(world.runtime, PIPELINE)
    for tenant in ("A", "B"):
        assert world.record("ERROR", tenant).answer is Answer.DELAYED


def test_a_lengthened_delay_counts_from_a_run_that_a_shorter_one_let_be_forgotten(world: World) -> None:
    at_the_servers_time(world)
    for delay in (300, 0.1):
        declare(world, PIPELINE, Criterion("$.level", "ERROR", "$.service", delay))
        assert reconcile(world.runtime, PIPELINE) == []
    world.record("ERROR", "A")
    world.run_all()
    wait_until(lambda: world.last_run("A") is None, "the last run is forgotten")
    declare(world, PIPELINE, Criterion("$.level", "ERROR", "$.service", 300))
    world.gate.us += 1_000_000
    assert reconcile(world.runtime, PIPELINE) == [], "nothing waits, and nobody is started"
    assert world.record("ERROR", "A").answer is Answer.DELAYED
    ((last_taken_ms,),) = world.inline.deployment.rows(
        "SELECT (extract(epoch FROM last_taken_at) * 1000)::bigint FROM taskbridge.sync_cursors"
    )
    assert world.due("A") == last_taken_ms + 300_000 - world.start_ms
