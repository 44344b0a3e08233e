"""Fixtures for real servers: an address from the environment, else the embedded ones.

Each test has its own database, made from a template, and its own key prefix in Redis; the servers live for the session.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis
from sqlalchemy import Engine, make_url, text

from taskbridge.embedded import Servers, serve
from taskbridge.gate import Keys
from taskbridge.store import connect, migrate
from tests.deployment import Deployment
from tests.directories import open_directory

TEMPLATE = "taskbridge_template"


@pytest.fixture(scope="session")
def servers() -> Iterator[Servers]:
    """Postgres and Redis: those of TASKBRIDGE_TEST_POSTGRES_URL and TASKBRIDGE_TEST_REDIS_URL, else embedded ones."""
    postgres, gate = os.environ.get("TASKBRIDGE_TEST_POSTGRES_URL"), os.environ.get("TASKBRIDGE_TEST_REDIS_URL")
    if postgres and gate:
        yield Servers(postgres, gate)
        return
    with open_directory() as directory, serve(directory / "servers", durable=False) as started:
        yield started


@pytest.fixture(scope="session")
def template(servers: Servers, worker_id: str) -> Iterator[str]:
    """The name of a database with the newest schema and no rows."""
    name = f"{TEMPLATE}_{worker_id}_{secrets.token_hex(4)}"
    with _administration(servers) as admin:
        _execute(admin, f'CREATE DATABASE "{name}"')
        engine = connect(_with_database(servers, name))
        migrate(engine)
        engine.dispose()
        yield name
        _execute(admin, f'DROP DATABASE "{name}" WITH (FORCE)')


@pytest.fixture
def postgres_url(servers: Servers, template: str) -> Iterator[str]:
    """An own database with the newest schema and no rows."""
    name = f"test_{secrets.token_hex(6)}"
    with _administration(servers) as admin:
        _execute(admin, f'CREATE DATABASE "{name}" TEMPLATE "{template}"')
        yield _with_database(servers, name)
        _execute(admin, f'DROP DATABASE "{name}" WITH (FORCE)')


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


@contextmanager
def _administration(servers: Servers) -> Iterator[Engine]:
    engine = connect(servers.postgres_url, isolation_level="AUTOCOMMIT")
    yield engine
    engine.dispose()


def _with_database(servers: Servers, name: str) -> str:
    return make_url(servers.postgres_url).set(database=name).render_as_string(hide_password=False)


def _execute(engine: Engine, statement: str) -> None:
    with engine.connect() as connection:
        connection.execute(text(statement))


@pytest.fixture
def deployment(
    engine: Engine, servers: Servers, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Deployment]:
    """A deployment with the design's times, or with settings given as the fixture's parameter."""
    own = Deployment(engine, servers.redis_url, tmp_path, **getattr(request, "param", {}))
    yield own
    own.close()
