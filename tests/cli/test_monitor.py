"""What `taskbridge up` shows while it runs, and what it takes for idle."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from taskbridge.cli import console
from taskbridge.cli.monitor import Monitor, has_pending, is_idle
from taskbridge.process.runtime import Runtime, runtime_of
from tests.deployment import Deployment
from tests.second.world import PIPELINE, World

LINES = 24
TENANT = "tenant-2000"


class NoWorkers:
    def watch(self) -> None:
        pass


@pytest.fixture
def crowded(deployment: Deployment) -> Runtime:
    """A runtime with 2,000 tenants that have a pending record each; the last has a runner, and one failed."""
    with deployment.engine.begin() as connection:
        connection.exec_driver_sql(
            "INSERT INTO taskbridge.records (source, tenant, key, document) "
            "SELECT 'invoices', 'tenant-' || n, '1', '{}' FROM generate_series(1, 2000) n"
        )
        connection.exec_driver_sql(
            "INSERT INTO taskbridge.sync_cursors (pipeline, tenant, failures, last_error) "
            "VALUES ('invoices', 'tenant-1000', 1, 'ValueError: boom')"
        )
    deployment.notify_event.delay(TENANT)
    return runtime_of(deployment.app)


def test_a_pipe_gets_a_line_and_a_terminal_the_active_tenants(
    crowded: Runtime, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not Monitor(crowded, NoWorkers(), ours=False).until(lambda _: False, 0.3)
    (shown,) = capsys.readouterr().err.splitlines()
    totals = "invoices: 1 runner, 1 or more pending, 0 in quarantine, 1 failing"
    assert totals in shown
    assert "invoices: 1 tenant fails" in shown
    terminal = Console(width=100, height=LINES, force_terminal=True, file=io.StringIO())
    monkeypatch.setattr(console, "stderr", lambda: terminal)
    assert not Monitor(crowded, NoWorkers(), ours=False).until(lambda _: False, 0.3)
    sent = terminal.file.getvalue()  # type: ignore[attr-defined]
    assert TENANT in sent
    assert totals in sent
    assert "tenant-1000" not in sent.partition(totals)[0], "only tenants with a runner are in the table"


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
