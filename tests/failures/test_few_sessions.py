"""A worker with more slots than it can have sessions of Postgres."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator

import pytest
from sqlalchemy import make_url

from tests.deployment import Deployment

pytestmark = pytest.mark.e2e

SLOTS = 6
SESSIONS = 4
TENANTS = 12
LATE = 5.0
"""Seconds; a quiet machine needs less than one."""


@pytest.fixture
def role(deployment: Deployment) -> Iterator[str]:
    """The URL of a role that can have few sessions."""
    name, owner = f"few_{secrets.token_hex(4)}", deployment.engine.url.username
    committing = deployment.engine.execution_options(isolation_level="AUTOCOMMIT")
    with committing.connect() as connection:
        connection.exec_driver_sql(f"CREATE ROLE {name} LOGIN PASSWORD 'secret' CONNECTION LIMIT {SESSIONS}")
        connection.exec_driver_sql(f"GRANT {owner} TO {name}")
    yield make_url(deployment.settings.postgres_url).set(username=name, password="secret").render_as_string(False)
    with committing.connect() as connection:
        connection.exec_driver_sql(f"DROP ROLE {name}")


def test_slots_without_a_session_leave_their_runs_to_others(deployment: Deployment, role: str) -> None:
    with deployment.worker("-c", str(SLOTS), TASKBRIDGE_POSTGRES_URL=role, TASKBRIDGE_PIPELINES="") as worker:
        began = time.monotonic()
        for number in range(2):
            for tenant in range(TENANTS):
                deployment.save(f"t{tenant}", str(number))
        saved = time.monotonic() - began
        deployment.wait_until_idle(60)
        late = time.monotonic() - began - saved
        print("SAVED", saved, "LATE", late)
        print(deployment.rows("SELECT count(*), usename, state FROM pg_stat_activity GROUP BY 2, 3"))
        print(worker.text()[-3000:])
        assert late < LATE, worker.text()
    failed = deployment.rows("SELECT tenant FROM taskbridge.sync_cursors WHERE failures > 0 OR last_error IS NOT NULL")
    assert failed == []
    assert len(deployment.deliveries()) == 2 * TENANTS
