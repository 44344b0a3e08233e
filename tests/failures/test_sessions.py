"""A run whose session of Postgres falls silent ends, and its tenant and the worker's slot are free again."""

from __future__ import annotations

import os
import secrets
import signal
import time
from collections.abc import Iterator

import pytest
from sqlalchemy import make_url

from taskbridge.declaring.batch import Batch
from taskbridge.integration.checks import Level, examine
from taskbridge.process.runtime import Runtime
from taskbridge.store import connect
from tests.deployment import Deployment
from tests.failures.drill import Drill


def test_a_session_that_falls_silent_under_the_handler_frees_tenant_and_slot(drill: Drill) -> None:
    url = drill.deployment.engine.url.render_as_string(hide_password=False)
    drill.runtime.engine = connect(url, statement_timeout=0.5)
    stopped: list[int] = []

    def write_and_lose_the_session(batch: Batch) -> None:
        pid = batch.connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one()
        if not stopped:
            stopped.append(pid)
            os.kill(pid, signal.SIGSTOP)

    drill.handle(write_and_lose_the_session)
    drill.save("acme", "a")
    drill.save("globex", "b")
    started = time.monotonic()
    try:
        assert drill.run_one()
        (status,) = drill.gate.look("invoices", ["acme"])
        assert status.held, "the tenant waits for its back-off"
        assert drill.run_one()
        assert drill.states("globex") == {"handled": 1}, "and the process goes on with others"
        assert time.monotonic() - started < 20
    finally:
        os.kill(stopped[0], signal.SIGCONT)
    drill.go_on()
    assert drill.states() == {"handled": 2}
    assert [tenant for tenant, _ in drill.calls] == ["acme", "globex", "acme"]
    drill.runtime.engine.dispose()


SLOTS = 6
SESSIONS = 4
TENANTS = 12


@pytest.fixture
def few(deployment: Deployment) -> Iterator[str]:
    """The URL of a role that can have few sessions."""
    name, owner = f"few_{secrets.token_hex(4)}", deployment.engine.url.username
    committing = deployment.engine.execution_options(isolation_level="AUTOCOMMIT")
    with committing.connect() as connection:
        connection.exec_driver_sql(f"CREATE ROLE {name} LOGIN PASSWORD 'secret' CONNECTION LIMIT {SESSIONS}")
        connection.exec_driver_sql(f"GRANT {owner} TO {name}")
    url = make_url(deployment.settings.postgres_url).set(username=name, password="secret")
    yield url.render_as_string(hide_password=False)
    with committing.connect() as connection:
        connection.exec_driver_sql(f"DROP ROLE {name}")


@pytest.mark.e2e
def test_slots_without_a_session_leave_their_runs_to_others(deployment: Deployment, few: str) -> None:
    with deployment.worker("-c", str(SLOTS), TASKBRIDGE_POSTGRES_URL=few, TASKBRIDGE_PIPELINES="") as worker:
        for number in range(2):
            for tenant in range(TENANTS):
                deployment.save(f"t{tenant}", str(number))
        deployment.wait_until_idle(60)
        assert "raised unexpected" not in worker.text()

        with deployment.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.exec_driver_sql(f"ALTER DATABASE {deployment.engine.url.database} CONNECTION LIMIT 9")
        looking = Runtime(deployment.settings, deployment.app)
        (found,) = [one for one in examine(looking) if one.check == "sessions"]
        assert found.level is Level.WARNING
        assert found.text.startswith("1 worker may need 10 Postgres sessions at once, and the CONNECTION LIMIT of")
        assert found.text.endswith("the database allows 9 for all clients")
        looking.close_sessions()
    assert not deployment.rows("SELECT FROM taskbridge.sync_cursors WHERE failures > 0 OR last_error IS NOT NULL")
    assert len(deployment.deliveries()) == 2 * TENANTS
