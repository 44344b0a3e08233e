"""What `taskbridge up` shows while it runs, and what it takes for idle."""

from __future__ import annotations

from taskbridge.cli.monitor import has_pending, is_idle
from tests.deployment import Deployment
from tests.second.world import PIPELINE, World


def test_a_tenant_that_waits_for_its_delay_is_not_idle_even_when_redis_lost_it(deployment: Deployment) -> None:
    world = World(deployment)
    assert is_idle(world.runtime)
    world.record("ERROR", "billing")
    assert not is_idle(world.runtime)
    world.run_all()
    assert is_idle(world.runtime)

    world.go_to(60_000)
    world.record("WARNING", "billing")
    assert not is_idle(world.runtime)
    deployment.redis.flushdb()
    assert not world.runtime.gate.active(PIPELINE)
    assert has_pending(world.runtime)
    assert not is_idle(world.runtime)

    world.runtime.gate.notify(PIPELINE, "billing", world.runtime.pipelines[PIPELINE].policy.spacing)
    world.run_all()
    assert is_idle(world.runtime)
