"""Fixtures on the servers of `taskbridge.testing.plugin`: each test has its own database and its own keys in Redis."""

from __future__ import annotations

import gc
import os
import secrets
import signal
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import psycopg
import pytest
import redis
import redis.utils
from sqlalchemy import Engine, make_url

from taskbridge.declaring.pipeline import DECLARED
from taskbridge.embedded import Servers
from taskbridge.gate import Keys
from taskbridge.process.runtime import runtimes
from taskbridge.store import connect
from taskbridge.store.db import parameters_of
from taskbridge.testing.databases import drop_database, make_database, set_search_path
from tests.deployment import Deployment
from tests.memory import keep_temporary_files_in_memory

# redis-py looks its own version up in its metadata for each connection, which takes longer than to connect.
vars(redis.utils)["get_lib_version"] = cache(redis.utils.get_lib_version)


def pytest_configure(config: pytest.Config) -> None:
    """Let temporary files lie in memory, where workers of pytest-xdist have them too, and let Ctrl-C reach processes.

    Whoever starts tests in the background of a shell lets them ignore Ctrl-C, and what they start would ignore it too.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if not hasattr(config, "workerinput"):
        keep_temporary_files_in_memory()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Look for no garbage while tests are collected, nor later among them: they stay to the end, and are many."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let tests that take long come first: at the end, one of them would run alone.

    First those with a time limit of their own, then those that start workers; all others stay in their order.
    """
    items.sort(key=lambda item: [item.get_closest_marker(name) is None for name in ("timeout", "e2e")])


@pytest.fixture(autouse=True)
def settings_of_others() -> Iterator[None]:
    """No test leaves settings in this process's environment: those after it would read them."""
    before = _settings()
    yield
    left = _settings()
    for name in left.keys() | before.keys():
        os.environ.pop(name, None)
    os.environ.update(before)
    assert left == before


@pytest.fixture(autouse=True)
def sessions_closed() -> Iterator[None]:
    """No test leaves sessions of apps that it made: they would be found when garbage is collected, in another test."""
    before = runtimes()
    yield
    for runtime in runtimes():
        if runtime not in before:
            runtime.close_sessions()


@pytest.fixture
def declarations() -> Iterator[None]:
    """What a test declares ends with it."""
    before = dict(DECLARED._declared)
    yield
    DECLARED._declared.clear()
    DECLARED._declared.update(before)


def _settings() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith("TASKBRIDGE_")}


@pytest.fixture(scope="session")
def servers(taskbridge_servers: Servers) -> Servers:
    """Postgres and Redis, for the session."""
    return taskbridge_servers


@pytest.fixture(scope="session")
def database_maker(servers: Servers) -> Iterator[psycopg.Connection[Any]]:
    """A session that makes and drops databases: to open one for each takes half of the time."""
    with psycopg.connect(**parameters_of(servers.postgres_url), autocommit=True) as session:
        yield session


@pytest.fixture
def taskbridge_postgres_url(
    servers: Servers, taskbridge_template: str, database_maker: psycopg.Connection[Any]
) -> Iterator[str]:
    """As the plugin's fixture, but all databases are made in one session."""
    name = f"test_{secrets.token_hex(6)}"
    make_database(database_maker, name, taskbridge_template)
    set_search_path(database_maker, name, ["public"])
    yield make_url(servers.postgres_url).set(database=name).render_as_string(hide_password=False)
    drop_database(database_maker, name)


@pytest.fixture
def postgres_url(taskbridge_postgres_url: str) -> str:
    """An own database with the newest schema and no rows."""
    return taskbridge_postgres_url


@pytest.fixture
def engine(postgres_url: str) -> Iterator[Engine]:
    """A pool of connections to the test's own database."""
    own = connect(postgres_url)
    yield own
    own.dispose()


@pytest.fixture
def keys() -> Keys:
    """Keys that no other test has."""
    return Keys(f"test-{secrets.token_hex(6)}")


@pytest.fixture
def redis_client(servers: Servers, keys: Keys) -> Iterator[redis.Redis]:
    """A client of the session's Redis; what the test leaves under its prefix is removed."""
    client = redis.Redis.from_url(servers.redis_url, decode_responses=True)
    yield client
    left = list(client.scan_iter(f"{keys.prefix}:*"))
    if left:
        client.delete(*left)
    client.close()


@pytest.fixture(scope="session")
def root() -> Path:
    """The root of the checkout."""
    return Path(__file__).resolve().parent.parent


@pytest.fixture
def deployment(
    engine: Engine, servers: Servers, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Deployment]:
    """A deployment with the design's times, or with settings given as the fixture's parameter."""
    own = Deployment(engine, servers.redis_url, tmp_path, **getattr(request, "param", {}))
    yield own
    own.close()
