"""A producer with pipelines of its own, and the events that it sent."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import wait

import psycopg
import pytest
import redis

from taskbridge.declaring.batch import Batch
from taskbridge.declaring.criteria import Criterion
from taskbridge.declaring.pipeline import Pipeline, Pipelines
from taskbridge.declaring.policy import DelaySinceLastRun, LatencyNeutral
from taskbridge.embedded import Servers
from taskbridge.gate import Keys
from taskbridge.integration.app import make_app
from taskbridge.process.runtime import runtime_of
from taskbridge.producer.producer import Bridge
from taskbridge.settings import Settings
from taskbridge.testing.servers import fresh_database
from tests.transactions.kinds import KINDS, TELLING, Held, opened

Events = Callable[[], dict[str, int]]


def handle(batch: Batch) -> None:
    """Nothing runs here."""


def producer(settings: Settings) -> Bridge:
    """A producer; two pipelines read the source `orders`."""
    made = make_app(settings)
    runtime_of(made.app).__dict__["pipelines"] = known = Pipelines()
    alerts = DelaySinceLastRun((Criterion("$.level", "ERROR", "$.service", 60),))
    for name, source, policy in (
        ("invoices", "invoices", LatencyNeutral()),
        ("orders", "orders", LatencyNeutral()),
        ("billing", "orders", LatencyNeutral()),
        ("alerts", "alerts", alerts),
    ):
        known.declare(Pipeline(name, handle, policy, 500, source=source))
    return made


@pytest.fixture(scope="package")
def database(taskbridge_servers: Servers, taskbridge_template: str) -> Iterator[str]:
    """One database for all: to make one takes longer than these tests."""
    with fresh_database(taskbridge_servers, taskbridge_template) as url:
        yield url


@pytest.fixture
def postgres_url(database: str) -> Iterator[str]:
    """The database, without records at the test's end."""
    yield database
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("TRUNCATE taskbridge.records, taskbridge.messages")


@pytest.fixture
def bridge(servers: Servers, postgres_url: str, keys: Keys, redis_client: redis.Redis) -> Iterator[Bridge]:
    """A producer on its own database and keys."""
    made = producer(Settings(postgres_url, servers.redis_url, key_prefix=keys.prefix, notify_timeout=10))
    yield made
    runtime_of(made.app).close()
    left = list(redis_client.scan_iter(f"*{keys.prefix}*"))
    if left:
        redis_client.delete(*left)


@pytest.fixture
def events(bridge: Bridge) -> Events:
    """What was notified: how many events each `pipeline tenant` had."""
    gate = runtime_of(bridge.app).gate

    def read() -> dict[str, int]:
        # What a commit in a coroutine sends is on its way when that returns.
        assert not wait(runtime_of(bridge.app).unsent, 10.0).not_done
        found = {}
        for pipeline in runtime_of(bridge.app).pipelines.names():
            tenants = gate.active(pipeline)
            for tenant, status in zip(tenants, gate.look(pipeline, tenants), strict=True):
                found[f"{pipeline} {tenant}"] = status.events
        return found

    return read


@pytest.fixture(params=KINDS)
def held(request: pytest.FixtureRequest, postgres_url: str) -> Iterator[Held]:
    """A connection of each kind."""
    with opened(request.param, postgres_url) as found:
        yield found


@pytest.fixture(params=TELLING)
def telling(request: pytest.FixtureRequest, postgres_url: str) -> Iterator[Held]:
    """A connection of each kind that tells of its commit."""
    with opened(request.param, postgres_url) as found:
        yield found
