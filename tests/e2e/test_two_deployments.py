"""Two deployments with different databases on one gate: the first one works, and the other is refused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from taskbridge.embedded import Servers
from taskbridge.errors import ForeignGate
from taskbridge.integration.app import make_app
from taskbridge.integration.checks import Finding, examine
from taskbridge.process.runtime import Runtime, runtime_of
from taskbridge.producer.producer import Bridge
from taskbridge.store import migrate
from tests.deployment import Deployment
from tests.store.restoring import empty_database
from tests.waiting import wait_until

pytestmark = pytest.mark.e2e
REFUSED = "belong to another deployment, whose records are in database"


@pytest.fixture
def other(deployment: Deployment, servers: Servers) -> Iterator[Bridge]:
    """The app of another deployment: a copy of the settings, with a database of its own."""
    with empty_database(servers) as engine:
        migrate(engine)
        url = engine.url.render_as_string(hide_password=False)
        made = make_app(replace(deployment.settings, postgres_url=url))
        yield made
        runtime_of(made.app).close()
        made.app.close()


def of(bridge: Bridge) -> Runtime:
    return runtime_of(bridge.app)


def foreign(runtime: Runtime) -> list[Finding]:
    """What `taskbridge doctor` says of a gate that is another's."""
    return [one for one in examine(runtime) if one.check == "gate"]


def test_another_deployment_is_refused_and_the_first_one_works_on(deployment: Deployment, other: Bridge) -> None:
    ours = runtime_of(deployment.app)
    with deployment.worker():
        with pytest.raises(ForeignGate, match=f"{REFUSED} {deployment.engine.url.database}, schema taskbridge"):
            other.record_invoice("acme", "1", {})
        (found,) = foreign(of(other))
        assert found.level == "problem"
        assert REFUSED in found.text
        assert "TASKBRIDGE_KEY_PREFIX" in found.remedy
        with (
            pytest.raises(AssertionError, match=REFUSED),
            deployment.worker(TASKBRIDGE_POSTGRES_URL=of(other).settings.postgres_url),
        ):
            pass
        assert foreign(ours) == []
        deployment.save("acme", "1", "2")
        wait_until(lambda: len(deployment.deliveries()) == 2, "both are delivered")
        # Redis loses its data, and the other deployment is the first to take the gate.
        deployment.redis.flushdb()
        of(other).own_gate()
        wait_until(lambda: (ours.gate.owner() or ("",))[0] == ours.deployment[0], "the gate is taken back")
        with pytest.raises(ForeignGate):
            of(other).own_gate()
    # A restart keeps it, however often a worker of the other deployment tries meanwhile.
    deployment.wait_until_idle()
    with pytest.raises(ForeignGate, match=f"run `redis-cli DEL {ours.keys.owner}`"):
        of(other).own_gate()
    # After a move people say so, or its new workers wait.
    of(other).release_gate()
    of(other).own_gate()
    of(other).check_owner()
    with pytest.raises(ForeignGate):
        ours.check_owner()


def test_a_worker_that_began_later_ends(deployment: Deployment, other: Bridge) -> None:
    with deployment.worker() as worker:
        deployment.redis.flushdb()
        runtime = of(other)
        runtime.gate.own(*runtime.deployment, began_ms=1)
        wait_until(lambda: worker.process.poll() is not None, "the worker ends")
        assert worker.process.wait() == 1
        assert "this worker ends: " in worker.text()
