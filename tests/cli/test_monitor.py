"""What `taskbridge up` shows while it runs, and what it takes for idle."""

from __future__ import annotations

import pytest

from taskbridge.cli.monitor import Monitor, has_pending, is_idle
from taskbridge.process.runtime import runtime_of
from tests.deployment import Deployment
from tests.second.world import PIPELINE, World


class NoWorkers:
    def watch(self) -> None:
        pass


def test_a_line_is_written_when_something_changes(deployment: Deployment, capsys: pytest.CaptureFixture[str]) -> None:
    with deployment.engine.begin() as connection:
        connection.exec_driver_sql(
            "INSERT INTO taskbridge.sync_cursors (pipeline, tenant, failures, last_error) "
            "VALUES ('invoices', 'bolt', 1, 'ValueError: boom')"
        )
    deployment.notify_event.delay("acme")
    assert not Monitor(runtime_of(deployment.app), NoWorkers(), ours=False).until(lambda _: False, 1.5)
    (line,) = capsys.readouterr().err.splitlines()
    assert "invoices: 1 runner, " in line
    assert "invoices: 1 tenant is failing" in line


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
