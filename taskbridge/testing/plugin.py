"""Fixtures for pytest: servers for the session, and a separate deployment for each test.

Load it with `pytest_plugins = ["taskbridge.testing.plugin"]` or `pytest -p taskbridge.testing.plugin`. It is not an
entry point, because pytest would then rewrite the asserts of this package in every project that has it installed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from taskbridge.embedded import Servers
    from taskbridge.settings import Settings


@pytest.fixture(scope="session")
def taskbridge_servers() -> Iterator[Servers]:
    """Postgres and Redis: from TASKBRIDGE_TEST_POSTGRES_URL and TASKBRIDGE_TEST_REDIS_URL, or else embedded ones."""
    from taskbridge.testing.servers import servers_for_tests

    with servers_for_tests() as servers:
        yield servers


@pytest.fixture(scope="session")
def taskbridge_template(taskbridge_servers: Servers) -> Iterator[str]:
    """The name of an empty database with the newest schema, called as in TASKBRIDGE_SCHEMA."""
    from taskbridge.settings import Settings
    from taskbridge.testing.servers import migrated_template

    with migrated_template(taskbridge_servers, Settings.read().schema) as name:
        yield name


@pytest.fixture
def taskbridge_postgres_url(taskbridge_servers: Servers, taskbridge_template: str) -> Iterator[str]:
    """The URL of an empty database for the test, with the newest schema."""
    from taskbridge.testing.servers import fresh_database

    with fresh_database(taskbridge_servers, taskbridge_template) as url:
        yield url


@pytest.fixture
def taskbridge_settings(
    taskbridge_servers: Servers, taskbridge_postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Settings]:
    """Give the test its own database and key prefix, and make `taskbridge.app` use them.

    The fixture sets TASKBRIDGE_POSTGRES_URL, TASKBRIDGE_REDIS_URL and TASKBRIDGE_KEY_PREFIX, but not
    TASKBRIDGE_PIPELINES. The gate's clock is frozen. Only `taskbridge.testing.drain` advances it.
    """
    from taskbridge.integration.app import app
    from taskbridge.testing.deploying import own_deployment

    servers = {
        "TASKBRIDGE_POSTGRES_URL": taskbridge_postgres_url,
        "TASKBRIDGE_REDIS_URL": taskbridge_servers.redis_url,
    }
    monkeypatch.delenv("TASKBRIDGE_BROKER_URL", raising=False)
    # If a test changes one of them with its `monkeypatch`, that is undone after the block below has ended.
    for name in (*servers, "TASKBRIDGE_KEY_PREFIX"):
        monkeypatch.setenv(name, servers.get(name, ""))
    monkeypatch.setitem(app.conf, "broker_url", taskbridge_servers.redis_url)
    with own_deployment(app, **servers) as runtime:
        yield runtime.settings
