"""Several servers of Redis: a primary behind Sentinel that is killed under load, and a cluster, which is refused."""

from __future__ import annotations

import itertools
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import redis
from sqlalchemy import Engine

from taskbridge.embedded import Guarded, Servers
from taskbridge.embedded.binaries import find_redis
from taskbridge.embedded.launch import free_port
from taskbridge.errors import ConfigurationError, Unavailable
from taskbridge.integration.app import make_app
from taskbridge.process.runtime import runtime_of
from taskbridge.store import record_invoice
from tests.deployment import Deployment
from tests.waiting import taking_at_most, wait_until

pytestmark = pytest.mark.e2e

PASSWORD = "a password/with@signs"
QUOTED = "a%20password%2Fwith%40signs"
TENANTS = [f"tenant-{number}" for number in range(20)]


def answers(client: redis.Redis) -> bool:
    with suppress(redis.RedisError):
        return bool(client.ping())
    return False


@contextmanager
def server(directory: Path, port: int, settings: str, *options: str) -> Iterator[Guarded]:
    file = directory / f"{port}.conf"
    file.write_text(f"bind 127.0.0.1\nport {port}\n{settings}")
    command: list[str | Path] = [find_redis(None), file, *options]
    with (
        (directory / f"{port}.log").open("wb") as output,
        Guarded(command, output=output, directory=directory) as running,
    ):
        yield running


class Watched:
    """A primary, a replica and a Sentinel."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self._directory, self._stack = directory, stack
        first, second, self.port = free_port(), free_port(), free_port()
        self.primary, self.replica = self._serve(first, ""), self._serve(second, f"replicaof 127.0.0.1 {first}\n")
        self.ports = first, second
        watched = (
            f"sentinel monitor shop 127.0.0.1 {first} 1\nsentinel auth-pass shop {{password}}\n"
            "sentinel down-after-milliseconds shop 500\nsentinel failover-timeout shop 2000\n"
        )
        self._run(self.port, watched.format(password=f'"{PASSWORD}"'), "--sentinel")
        self.sentinel = redis.Redis(port=self.port, decode_responses=True)
        wait_until(self._knows_the_replica, "Sentinel knows the replica")

    @property
    def url(self) -> str:
        return f"sentinel://:{QUOTED}@127.0.0.1:{self.port}/3;sentinel://127.0.0.1:1?master_name=shop"

    def address(self) -> int:
        found: Any = self.sentinel.sentinel_get_master_addr_by_name("shop")
        return int(found[1])

    def _knows_the_replica(self) -> bool:
        with suppress(redis.RedisError):
            return any("slave" in one["flags"] for one in self.sentinel.sentinel_slaves("shop"))
        return False

    def _serve(self, port: int, more: str) -> Guarded:
        password = f'requirepass "{PASSWORD}"\nmasterauth "{PASSWORD}"\nrepl-diskless-sync-delay 0\n'
        return self._run(port, f'save ""\n{password}{more}')

    def _run(self, port: int, settings: str, *options: str) -> Guarded:
        return self._stack.enter_context(server(self._directory, port, settings, *options))


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    with ExitStack() as stack:
        yield Watched(tmp_path, stack)


@contextmanager
def deployed(engine: Engine, servers: Servers, tmp_path: Path, watched: Watched) -> Iterator[Deployment]:
    """A deployment whose producer and workers know only the Sentinels."""
    made = Deployment(engine, servers.redis_url, tmp_path)
    made.app.close()
    made.settings = replace(made.settings, redis_url=watched.url, notify_timeout=0.25)
    bridge = make_app(made.settings)
    made.app, made.notify_event = bridge.app, bridge.notify_event
    yield made
    made.close()


def test_a_failover_under_load_loses_nothing(
    engine: Engine, servers: Servers, tmp_path: Path, watched: Watched
) -> None:
    with deployed(engine, servers, tmp_path, watched) as shop:
        assert runtime_of(shop.app).publishes_in_gate
        with shop.worker() as worker:
            shop.save("warm", "1")
            wait_until(lambda: shop.deliveries() == [("warm", "1")], "the first one is delivered")
            refused = 0
            for number, tenant in itertools.product(range(15), TENANTS):
                if (number, tenant) == (5, TENANTS[0]):
                    watched.primary.stop()
                record_invoice(engine, tenant, str(number), {})
                try:
                    shop.notify_event.delay(tenant)
                except Unavailable:
                    refused += 1
                time.sleep(0.005)
            with engine.begin() as connection:
                connection.exec_driver_sql(
                    "INSERT INTO taskbridge.records (source, tenant, key, document) "
                    "SELECT 'invoices', 'sql', n::text, '{}' FROM generate_series(1, 20) n"
                )
            wait_until(lambda: watched.address() == watched.ports[1], "the replica is the primary")
            expected = {("warm", "1"), *(("sql", str(number)) for number in range(1, 21))}
            expected |= {(tenant, str(number)) for number in range(15) for tenant in TENANTS}
            wait_until(lambda: expected <= set(shop.deliveries()), "all are delivered", 30)
            assert len(shop.deliveries()) == len(expected), "each once"
            assert worker.process.poll() is None
            shop.notify_event.delay("warm")
            shop.wait_until_idle()
            assert 0 < refused < 300


def test_a_cluster_is_refused_at_the_start_of_a_worker(deployment: Deployment, tmp_path: Path) -> None:
    port = next(port for port in iter(free_port, 0) if port < 55_000)  # the nodes' own port is higher by 10,000
    with server(tmp_path, port, 'save ""\ncluster-enabled yes\n'):
        client: Any = redis.Redis(port=port)
        wait_until(lambda: answers(client), "it answers")
        client.execute_command("CLUSTER", "ADDSLOTS", *range(16384))
        settings = replace(deployment.settings, redis_url=f"redis://127.0.0.1:{port}/0")
        with pytest.raises(ConfigurationError, match="Redis Cluster"):
            runtime_of(make_app(settings).app).check()
        with (
            pytest.raises(AssertionError, match="names a Redis Cluster"),
            deployment.worker(TASKBRIDGE_REDIS_URL=settings.redis_url),
        ):
            pass


def test_sentinels_that_never_answer_hold_no_producer_up(deployment: Deployment) -> None:
    with ExitStack() as stack:
        silent = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(3)]
        urls = ";".join(f"sentinel://127.0.0.1:{each.getsockname()[1]}" for each in silent)
        settings = replace(deployment.settings, redis_url=f"{urls}/0?master_name=shop", notify_timeout=0.3)
        bridge = make_app(settings)
        with taking_at_most(2), pytest.raises(Unavailable):
            bridge.notify_event.delay("acme")
        with pytest.raises(Unavailable, match="sending resumes within 1 s"):
            bridge.notify_event.delay("acme")
