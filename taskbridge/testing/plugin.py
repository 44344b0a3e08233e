"""Fixtures for pytest: servers for the session, and a deployment of its own for each test.

Loaded by name, `pytest_plugins = ["taskbridge.testing.plugin"]` or `pytest -p taskbridge.testing.plugin`. There is no
entry point: one would import Celery and SQLAlchemy into every pytest run of an environment that has TaskBridge.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from taskbridge.embedded import Servers
from taskbridge.integration.app import app
from taskbridge.settings import Settings
from taskbridge.testing.deploying import own_deployment
from taskbridge.testing.servers import fresh_database, migrated_template, servers_for_tests


@pytest.fixture(scope="session")
def taskbridge_servers() -> Iterator[Servers]:
    """Postgres and Redis: those of TASKBRIDGE_TEST_POSTGRES_URL and TASKBRIDGE_TEST_REDIS_URL, else embedded ones."""
    with servers_for_tests() as servers:
        yield servers


@pytest.fixture(scope="session")
def taskbridge_template(taskbridge_servers: Servers) -> Iterator[str]:
    """The name of a database with the newest tables and no rows, in the schema that TASKBRIDGE_SCHEMA names."""
    with migrated_template(taskbridge_servers, Settings.read().schema) as name:
        yield name


@pytest.fixture
def taskbridge_postgres_url(taskbridge_servers: Servers, taskbridge_template: str) -> Iterator[str]:
    """A database of the test's own, with the newest schema and no rows."""
    with fresh_database(taskbridge_servers, taskbridge_template) as url:
        yield url


@pytest.fixture
def taskbridge_settings(
    taskbridge_servers: Servers, taskbridge_postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Settings]:
    """`taskbridge.app` and all that uses it in this process, on a database and under a key prefix of the test's own.

    TASKBRIDGE_POSTGRES_URL, TASKBRIDGE_REDIS_URL and TASKBRIDGE_KEY_PREFIX name them; TASKBRIDGE_PIPELINES stays as it
    is. The gate's clock stands still, and only `taskbridge.testing.drain` moves it.
    """
    servers = {
        "TASKBRIDGE_POSTGRES_URL": taskbridge_postgres_url,
        "TASKBRIDGE_REDIS_URL": taskbridge_servers.redis_url,
    }
    monkeypatch.delenv("TASKBRIDGE_BROKER_URL", raising=False)
    # A test that changes one of them by its `monkeypatch` has that undone after the block below has ended.
    for name in (*servers, "TASKBRIDGE_KEY_PREFIX"):
        monkeypatch.setenv(name, servers.get(name, ""))
    monkeypatch.setitem(app.conf, "broker_url", taskbridge_servers.redis_url)
    with own_deployment(app, **servers) as runtime:
        yield runtime.settings
