"""Several servers of Redis: a primary behind Sentinel and a cluster, of which one is killed under load."""

from __future__ import annotations

import itertools
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis
from sqlalchemy import Engine

from taskbridge.declaring.pipeline import Pipelines
from taskbridge.declaring.policy import Spacing
from taskbridge.embedded import Guarded, Servers
from taskbridge.errors import ConfigurationError, Unavailable
from taskbridge.gate import Gate, Keys, client, wire
from taskbridge.handlers.journal import JOURNAL
from taskbridge.integration.app import make_app
from taskbridge.integration.checks import Level, examine
from taskbridge.process.runtime import runtime_of
from taskbridge.store import record_invoice
from tests.certificates import Encrypted, certificate
from tests.deployment import Deployment
from tests.redis_cluster import answers, redis_cluster, redis_server
from tests.scraping import free_ports
from tests.waiting import taking_at_most, wait_until

pytestmark = pytest.mark.e2e

PASSWORD = "a password/with@signs"
QUOTED = "a%20password%2Fwith%40signs"
TENANTS = [f"tenant-{number}" for number in range(20)]


class Watched:
    """A primary, a replica and two Sentinels. Sentinel and replica log in as a user of their own.

    The second Sentinel has no contact with the first, as if it was cut off together with the primary.

    `seen_at`: returns the port at which the Sentinel and its clients reach the primary.
    """

    def __init__(self, directory: Path, stack: ExitStack, seen_at: Callable[[int], int] = lambda port: port) -> None:
        self._directory, self._stack = directory, stack
        first, second, self.port, self._cut_off = free_ports(), free_ports(), free_ports(), free_ports()
        self.ports = first, second
        lonely = f'user lonely on ">{PASSWORD}" ~* &* +@all -publish -subscribe\n'
        self.primary, self.replica = self._serve(first, lonely), self.serve_replica(second)
        watched = (
            f"sentinel monitor shop 127.0.0.1 {seen_at(first)} {{quorum}}\nsentinel auth-user shop {{user}}\n"
            f'sentinel auth-pass shop "{PASSWORD}"\n'
            "sentinel down-after-milliseconds shop 500\nsentinel failover-timeout shop 2000\n"
        )
        self._run(self.port, watched.format(quorum=1, user="watcher"), "--sentinel")
        self._run(self._cut_off, watched.format(quorum=2, user="lonely"), "--sentinel")
        self.sentinel = redis.Redis(port=self.port, decode_responses=True)
        wait_until(self._knows_the_replica, "Sentinel knows the replica")

    @property
    def url(self) -> str:
        ports = self._cut_off, 1, self.port
        first, *others = (f"127.0.0.1:{port}" for port in ports)
        return ";sentinel://".join([f"sentinel://:{QUOTED}@{first}/3", *others]) + "?master_name=shop"

    def address(self) -> int:
        found: Any = self.sentinel.sentinel_get_master_addr_by_name("shop")
        return int(found[1])

    def cut_off_primary(self) -> redis.Redis:
        """Let neither Sentinel nor the replica reach the primary, to which clients stay connected; return a client."""
        primary = redis.Redis(
            port=self.address(), password=PASSWORD, decode_responses=True, single_connection_client=True
        )
        primary.acl_deluser("watcher")
        return primary

    def serve_replica(self, port: int | None = None) -> Guarded:
        """Run a replica of the first primary."""
        return self._serve(port or free_ports(), f"replicaof 127.0.0.1 {self.ports[0]}\n")

    def _knows_the_replica(self) -> bool:
        with suppress(redis.RedisError):
            return any("slave" in one["flags"] for one in self.sentinel.sentinel_slaves("shop"))
        return False

    def _serve(self, port: int, more: str) -> Guarded:
        users = f'requirepass "{PASSWORD}"\nuser watcher on ">{PASSWORD}" ~* &* +@all\n'
        replication = f'masteruser watcher\nmasterauth "{PASSWORD}"\nrepl-diskless-sync-delay 0\n'
        return self._run(port, f'save ""\n{users}{replication}{more}')

    def _run(self, port: int, settings: str, *options: str) -> Guarded:
        return self._stack.enter_context(redis_server(self._directory, port, settings, *options))


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    with ExitStack() as stack:
        yield Watched(tmp_path, stack)


@contextmanager
def deployed(
    engine: Engine, servers: Servers, tmp_path: Path, *, has_own_broker: bool = False, **settings: Any
) -> Iterator[Deployment]:
    """A deployment with these settings in its producer and its workers; its own broker is the session's Redis."""
    made = Deployment(engine, servers.redis_url, tmp_path)
    made.app.close()
    broker_url = made.settings.redis_url if has_own_broker else ""
    given: dict[str, Any] = {"notify_timeout": 0.25, "broker_url": broker_url} | settings
    made.settings = replace(made.settings, **given)
    bridge = make_app(made.settings)
    made.app, made.notify_event = bridge.app, bridge.notify_event
    yield made
    made.close()


def work_while(shop: Deployment, fails: Callable[[], object], has_failed_over: Callable[[], object]) -> None:
    """Record and notify, let a server fail meanwhile, and wait until all that was recorded is delivered once."""
    with shop.worker() as worker:
        shop.save("warm", "1")
        wait_until(lambda: shop.deliveries() == [("warm", "1")], "the first one is delivered")
        refused = 0
        for number, tenant in itertools.product(range(15), TENANTS):
            if (number, tenant) == (5, TENANTS[0]):
                fails()
            record_invoice(shop.engine, tenant, str(number), {})
            try:
                shop.notify_event.delay(tenant)
            except Unavailable:
                refused += 1
            time.sleep(0.005)
        shop.execute(
            "INSERT INTO taskbridge.records (source, tenant, key, document) "
            "SELECT 'invoices', 'sql', n::text, '{}' FROM generate_series(1, 20) n"
        )
        wait_until(has_failed_over, "another server is the primary")
        expected = {("warm", "1"), *(("sql", str(number)) for number in range(1, 21))}
        expected |= {(tenant, str(number)) for number in range(15) for tenant in TENANTS}
        wait_until(lambda: expected <= set(shop.deliveries()), "all are delivered", 30)
        assert len(shop.deliveries()) == len(expected), "each once"
        assert worker.process.poll() is None
        shop.notify_event.delay("warm")
        shop.wait_until_idle()
        assert 0 < refused < 300
        runtime = runtime_of(shop.app)
        # Without what other tests have declared in this process, and no worker serves.
        runtime.pipelines = Pipelines().beside(JOURNAL)
        assert [one for one in examine(runtime) if one.level is Level.PROBLEM] == []


def test_a_failover_under_load_loses_nothing(
    engine: Engine, servers: Servers, tmp_path: Path, watched: Watched
) -> None:
    with deployed(engine, servers, tmp_path, redis_url=watched.url) as shop:
        assert runtime_of(shop.app).publishes_in_gate
        work_while(shop, watched.primary.stop, lambda: watched.address() == watched.ports[1])


def test_doctor_asks_for_replicas_to_write_to(deployment: Deployment, watched: Watched) -> None:
    def found(url: str) -> list[str]:
        runtime = runtime_of(make_app(replace(deployment.settings, redis_url=url)).app)
        return [one.level for one in examine(runtime) if one.check == "replication"]

    assert found(watched.url) == [], "a restart of the only replica would stop all writes"
    watched.serve_replica()
    with redis.Redis(port=watched.ports[0], password=PASSWORD) as primary:
        wait_until(lambda: primary.info("replication")["connected_slaves"] == 2, "both replicas are connected")
        assert found(watched.url) == [Level.WARNING]
        assert found(f"redis://:{QUOTED}@127.0.0.1:{watched.ports[0]}/3") == [], "nobody would replace it"
        primary.config_set("min-replicas-to-write", 1)
        assert found(watched.url) == []


def is_ours(connection: dict[str, str]) -> bool:
    """Whether a producer or a worker has just used the connection."""
    return connection["cmd"] in ("evalsha", "brpop") and int(connection["idle"]) < 3


def test_sentinel_and_primary_are_used_through_tls(engine: Engine, servers: Servers, tmp_path: Path) -> None:
    file, other = tmp_path / "certificate.pem", tmp_path / "other.pem"
    certificate("other.example", other)
    context, encrypted = certificate("localhost", file), dict[int, Encrypted]()

    def seen_at(port: int, *, takes_plain: bool = True) -> int:
        made = Encrypted(f"redis://127.0.0.1:{port}", context, takes_plain=takes_plain)
        encrypted[port] = stack.enter_context(closing(made))
        return int(made.url.rpartition(":")[2])

    with ExitStack() as stack:
        # The Sentinel itself uses no TLS.
        watched = Watched(tmp_path, stack, seen_at)
        port = seen_at(watched.port, takes_plain=False)
        url = f"sentinel://:{QUOTED}@127.0.0.1:{port}/3?master_name=shop&ssl_ca_certs={{}}"
        shop = stack.enter_context(deployed(engine, servers, tmp_path, redis_url=url.format(file), notify_timeout=10))
        stack.enter_context(shop.worker())
        assert runtime_of(shop.app).publishes_in_gate
        shop.save("warm", "1")
        wait_until(lambda: shop.deliveries() == [("warm", "1")], "it is delivered")
        with redis.Redis(port=watched.ports[0], password=PASSWORD, decode_responses=True) as client:
            ours = {one["addr"] for one in client.client_list() if is_ours(one)}
        assert len(ours) > 1
        assert ours <= encrypted[watched.ports[0]].addresses
        refused = runtime_of(make_app(replace(shop.settings, redis_url=url.format(other))).app)
        levels = {(one.check, one.level) for one in examine(refused) if one.check in ("Redis", "broker")}
        assert levels == {("Redis", Level.PROBLEM), ("broker", Level.PROBLEM)}, "nobody knows who signed it"


def test_a_primary_that_is_cut_off_from_its_sentinels_is_left(
    engine: Engine, servers: Servers, tmp_path: Path, watched: Watched
) -> None:
    """It still takes what clients write: that is lost, and its records are delivered a little later.

    The Sentinel beside it, which is the first in the URL, still names it.
    """
    with deployed(engine, servers, tmp_path, redis_url=watched.url) as shop, shop.worker() as worker:
        shop.save("warm", "1")
        wait_until(lambda: shop.deliveries() == [("warm", "1")], "the first one is delivered")
        with watched.cut_off_primary() as old:
            wait_until(lambda: watched.address() == watched.ports[1], "the replica is the primary")
            for number in range(2, 6):
                with suppress(Unavailable):
                    shop.save("warm", str(number))
                time.sleep(0.5)
            expected = [("warm", str(number)) for number in range(1, 6)]
            wait_until(lambda: sorted(shop.deliveries()) == expected, "all are delivered")
            wait_until(lambda: not any(map(is_ours, old.client_list())), "nobody uses the old primary")
            assert worker.process.poll() is None


def test_connections_to_old_primaries_do_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "ASK_SENTINELS_EVERY", 0.0)
    ports = [free_ports() for _ in range(3)]
    with ExitStack() as stack:
        for port, options in zip(ports, ([], [], ["--sentinel"]), strict=True):
            stack.enter_context(redis_server(tmp_path, port, "", *options))
        *primaries, sentinel = (stack.enter_context(redis.Redis(port=port)) for port in ports)
        wait_until(lambda: all(map(answers, (*primaries, sentinel))), "all servers answer")
        sentinel.sentinel_monitor("shop", "127.0.0.1", ports[0], 1)
        url = f"sentinel://127.0.0.1:{ports[2]}?master_name=shop"
        gate = Gate(stack.enter_context(client(url)), Keys("shop"), publish=lambda *_: None)
        gate._client.connection_pool.max_connections = 2

        def leads_to(primary: redis.Redis) -> bool:
            gate.notify("invoices", "acme", Spacing(delay=0))
            return bool(primary.dbsize())

        for number in (1, 0, 1, 0):
            primaries[number].flushall()
            sentinel.sentinel_remove("shop")
            sentinel.sentinel_monitor("shop", "127.0.0.1", ports[number], 1)
            wait_until(partial(leads_to, primaries[number]), "the gate uses the new primary")


def test_a_failover_in_a_cluster_loses_nothing(engine: Engine, servers: Servers, tmp_path: Path) -> None:
    keys = Keys("{shop}")
    with redis_cluster(tmp_path, replicas=1, password="secret") as cluster:
        owner = cluster.owner_of(keys.owner)
        settings = {"redis_url": cluster.url, "key_prefix": keys.prefix}
        with deployed(engine, servers, tmp_path, has_own_broker=True, **settings) as shop:
            work_while(shop, owner.process.stop, lambda: cluster.owner(keys.owner) not in (None, owner))


@pytest.mark.parametrize(
    ("prefix", "reason"),
    [("shop", "set TASKBRIDGE_KEY_PREFIX to a name in braces"), ("{shop}", "set TASKBRIDGE_BROKER_URL")],
)
def test_a_cluster_that_cannot_be_used_is_refused_at_the_start_of_a_worker(
    deployment: Deployment, tmp_path: Path, prefix: str, reason: str
) -> None:
    with redis_cluster(tmp_path, masters=1) as cluster:
        settings = replace(deployment.settings, redis_url=cluster.url, key_prefix=prefix)
        with pytest.raises(ConfigurationError, match=reason):
            runtime_of(make_app(settings).app).check()
        refused = pytest.raises(AssertionError, match=reason)
        with refused, deployment.worker(TASKBRIDGE_REDIS_URL=cluster.url, TASKBRIDGE_KEY_PREFIX=prefix):
            pass


@pytest.mark.parametrize(
    ("parameters", "remedy"),
    [
        ("master_name=shop", "correct sentinel_password in TASKBRIDGE_REDIS_URL"),
        ("master_name=shop&sentinel_password=b", "correct sentinel_password in TASKBRIDGE_REDIS_URL"),
        ("master_name=shot&sentinel_password=a", "correct master_name in TASKBRIDGE_REDIS_URL"),
        ("master_name=shop&sentinel_password=a", "start it, or wait for the failover"),
    ],
)
def test_what_is_wrong_with_the_sentinels_is_named(
    deployment: Deployment, tmp_path: Path, parameters: str, remedy: str
) -> None:
    port = free_ports()
    settings = "requirepass a\nsentinel monitor shop 127.0.0.1 1 1\nsentinel down-after-milliseconds shop 50\n"
    with redis_server(tmp_path, port, settings, "--sentinel"), redis.Redis(port=port, password="a") as sentinel:
        wait_until(lambda: answers(sentinel) and sentinel.sentinel_master("shop")["is_sdown"], "the primary is down")
        url = f"sentinel://127.0.0.1:{port}/0?{parameters}"
        runtime = runtime_of(make_app(replace(deployment.settings, redis_url=url)).app)
        assert [one.remedy for one in examine(runtime) if one.check in ("Redis", "broker")] == [remedy, remedy]
        with pytest.raises(AssertionError, match=remedy), deployment.worker(TASKBRIDGE_REDIS_URL=url):
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
