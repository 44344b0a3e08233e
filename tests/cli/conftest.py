from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from sqlalchemy import make_url

from taskbridge.embedded import Servers
from taskbridge.gate import Keys
from taskbridge.testing.servers import open_directory
from tests.cli.program import Program

# Queues have fixed names, so what tests publish stays in a Redis database that no other folder of tests uses.
DATABASE = 15


@pytest.fixture
def directory() -> Iterator[Path]:
    """An empty directory of the test."""
    with open_directory() as made:
        yield made


@pytest.fixture
def gate_redis(servers: Servers) -> Iterator[redis.Redis]:
    """The Redis database of the command: gate and broker."""
    url = make_url(servers.redis_url).set(database=str(DATABASE)).render_as_string(hide_password=False)
    with redis.Redis.from_url(url, decode_responses=True) as client:
        client.flushdb()
        yield client
        client.flushdb()


@pytest.fixture
def configured(servers: Servers, postgres_url: str, gate_redis: redis.Redis, keys: Keys) -> dict[str, str]:
    """Variables that name servers with the newest schema and no rows."""
    assert gate_redis.ping()
    return {
        "TASKBRIDGE_POSTGRES_URL": postgres_url,
        "TASKBRIDGE_REDIS_URL": make_url(servers.redis_url)
        .set(database=str(DATABASE))
        .render_as_string(hide_password=False),
        "TASKBRIDGE_KEY_PREFIX": keys.prefix,
    }


@pytest.fixture
def refusable(configured: dict[str, str], gate_redis: redis.Redis) -> Iterator[str]:
    """The URL of a Redis user who can be removed while a command works."""
    gate_redis.acl_setuser("importer", enabled=True, passwords=["+a-password"], keys=["*"], categories=["+@all"])
    url = make_url(configured["TASKBRIDGE_REDIS_URL"]).set(username="importer", password="a-password")
    yield url.render_as_string(hide_password=False)
    gate_redis.acl_deluser("importer")


@pytest.fixture
def bare(directory: Path) -> Program:
    """The program where no servers are configured."""
    return Program(directory, {})


@pytest.fixture
def taskbridge(directory: Path, configured: dict[str, str]) -> Program:
    """The program with configured servers."""
    return Program(directory, configured)


@pytest.fixture(scope="session")
def a_day(root: Path) -> Path:
    """169 invoices of 6 tenants."""
    return root / "examples" / "online_retail_2011-12-01.csv"
