"""A worker with more slots than it can have sessions of Postgres."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator

import pytest
from sqlalchemy import make_url

from taskbridge.integration.checks import Level, examine
from taskbridge.process.runtime import Runtime
from tests.deployment import Deployment

pytestmark = pytest.mark.e2e

SLOTS = 6
SESSIONS = 4
TENANTS = 12
LATE = 10.0
"""Seconds; a quiet machine needs less than two, and back-offs that double would take longer."""


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


def test_slots_without_a_session_leave_their_runs_to_others(deployment: Deployment, few: str) -> None:
    with deployment.worker("-c", str(SLOTS), TASKBRIDGE_POSTGRES_URL=few, TASKBRIDGE_PIPELINES="") as worker:
        for number in range(2):
            for tenant in range(TENANTS):
                deployment.save(f"t{tenant}", str(number))
        saved = time.monotonic()
        deployment.wait_until_idle(60)
        assert time.monotonic() - saved < LATE
        assert "raised unexpected" not in worker.text()

        with deployment.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.exec_driver_sql(f"ALTER DATABASE {deployment.engine.url.database} CONNECTION LIMIT 9")
        looking = Runtime(deployment.app, deployment.settings)
        (found,) = [one for one in examine(looking) if one.check == "sessions"]
        assert found.level is Level.WARNING
        assert found.text.startswith("1 worker may need 10 Postgres sessions at once, and the CONNECTION LIMIT of")
        assert found.text.endswith("the database allows 9 for all clients")
        looking.close_sessions()
    assert not deployment.rows("SELECT FROM taskbridge.sync_cursors WHERE failures > 0 OR last_error IS NOT NULL")
    assert len(deployment.deliveries()) == 2 * TENANTS
