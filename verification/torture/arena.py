"""Where schedules run: Postgres and Redis, three workers, and one database that they share."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import psycopg
from sqlalchemy import make_url

from taskbridge import LatencyNeutral, app, pipeline
from taskbridge.process.runtime import runtime_of
from taskbridge.settings import Settings
from taskbridge.store import connect, migrate
from taskbridge.store.db import parameters_of
from taskbridge.testing.servers import open_directory
from tests.deployment import ROOT
from tests.forked import PROGRAM, Forked
from tests.store.pgbouncer import PgBouncer
from tests.waiting import wait_until
from verification.torture.kinds import PARCELS
from verification.torture.ledger import Ledger
from verification.torture.pristine import PREPARES
from verification.torture.proxy import Proxy
from verification.torture.sentinel import RedisBehindSentinel
from verification.torture.servers import PostgresHere, RedisHere
from verification.torture.stalls import Stalls, observe
from verification.torture.users import GOODS, TABLE, TABLES, Users
from verification.torture.workers import Kind, Workers

T = TypeVar("T")

__all__ = ["ADOPTS", "NOT_AS_DELIVERED", "SETTINGS", "Arena", "arena", "command"]

SETTINGS: dict[str, Any] = {
    "runner_ttl": 1.5,
    "republish_after": 1.5,
    "tail_interval": 0.2,
    "base_interval": 3.0,
    "run_budget": 0.2,
    "statement_timeout": 2.0,
    "transaction_timeout": 10.0,
}

ADOPTS: Final = ("adopt", TABLE, "--tenant", "tenant", "--key", "id", "--source", GOODS)
"""The command that makes the users' table a source."""
POOL: Final = 40
"""Connections of PgBouncer to Postgres: a handler that writes has one to itself."""
BACK_WITHIN = 60.0
COMMAND_ENDS_WITHIN: Final = 120.0
NOT_AS_DELIVERED: Final = """\
SELECT coalesce(g.tenant, s.tenant) AS tenant, coalesce(g.key, s.key) AS key, g.version, s.version AS delivered
FROM (SELECT tenant, id::text AS key, version FROM torture_goods WHERE tenant LIKE %(tenants)s) g
FULL JOIN (
    SELECT DISTINCT ON (tenant, key) tenant, key, version, deleted FROM torture_goods_seen
    WHERE tenant LIKE %(tenants)s ORDER BY tenant, key, revision DESC
) s USING (tenant, key)
WHERE CASE WHEN g.key IS NULL THEN NOT s.deleted ELSE s.deleted IS DISTINCT FROM false OR g.version <> s.version END
"""
"""The rows of the adopted table, and those that are gone, whose last delivery says something else, or is missing."""
FORGET_GOODS: Final = (
    "DELETE FROM torture_goods",
    "DELETE FROM torture_goods_seen",
    "DELETE FROM taskbridge.records WHERE source = 'goods'",
)
FIRST_WORKERS = [Kind("prefork", 7), Kind("threads", 3), Kind("solo", 50)]


class Said(NamedTuple):
    """What came of a command."""

    status: int
    out: str
    errors: str


@dataclass
class Arena:
    """Everything that a schedule strikes and looks at."""

    postgres: PostgresHere
    redis: RedisHere | RedisBehindSentinel
    to_producers: Proxy
    to_worker: Proxy
    """In front of Redis: of the producers, and of the worker that `Workers.behind_proxy` returns."""
    pooler: PgBouncer | None
    workers: Workers
    ledger: Ledger
    settings: Settings
    books: Path
    stalls: Stalls

    def __post_init__(self) -> None:
        self.engine = connect(self.postgres.url)
        self._down = 0
        self._counting = threading.Lock()
        self._copied = 0
        self._copying = threading.Lock()

    @contextmanager
    def down(self) -> Iterator[None]:
        """Keep the supervisor from starting workers while a server is away: they refuse to start without it."""
        with self._counting:
            self._down += 1
            self.workers.up.clear()
        try:
            yield
            if self.pooler is not None:
                wait_until(self._gets_through, "PgBouncer lets a client through")
        finally:
            with self._counting:
                self._down -= 1
                if not self._down:
                    self.workers.up.set()

    def _gets_through(self) -> bool:
        parameters = parameters_of(self.settings.postgres_url)
        with suppress(psycopg.OperationalError), psycopg.connect(**parameters, connect_timeout=2) as connection:
            connection.execute("SELECT 1")
            return True
        return False

    @contextmanager
    def marked(self, name: str) -> Iterator[None]:
        """Keep a file in the books that handlers look for; see `verification.torture.pipelines`."""
        mark = self.books / name
        mark.touch()
        try:
            yield
        finally:
            mark.unlink()

    def restart_postgres(self, number: signal.Signals, seconds: float) -> tuple[float, float]:
        """End Postgres, and start it `seconds` later; return when it was struck and when it answered."""
        with self.down():
            struck = time.monotonic()
            self.postgres.strike(number)
            time.sleep(seconds)
            self.postgres.start()
        return struck, time.monotonic()

    def wait_for_runs(self, tenants: Sequence[str]) -> None:
        """Wait until at least one of the tenants has had a run."""
        asked = "SELECT FROM taskbridge.sync_cursors WHERE tenant = ANY(%(tenants)s) LIMIT 1"
        wait_until(lambda: self.rows(asked, tenants=[*tenants]), "a run of one of many tenants", 20)

    def count_unsettled(self, prefix: str) -> int:
        """Return how many invoices of these tenants are not where they can end, in their newest revision."""
        self.copy_parcels()
        ((count,),) = self.rows(
            "SELECT count(*) FROM taskbridge.records i WHERE tenant LIKE %(tenants)s AND NOT EXISTS ("
            "SELECT FROM taskbridge.deliveries d "
            "WHERE (d.tenant, d.external_id, d.revision) = (i.tenant, i.key, i.revision)"
            ") AND NOT EXISTS ("
            "SELECT FROM taskbridge.quarantine q "
            "WHERE (q.tenant, q.external_id, q.revision) = (i.tenant, i.key, i.revision))",
            tenants=f"{prefix}%",
        )
        return int(count)

    def count_pending(self, prefix: str) -> int:
        """Return how many records of these tenants no cursor has passed; a parcel may have been delivered before."""
        ((count,),) = self.rows(
            "SELECT count(*) FROM taskbridge.record_states WHERE tenant LIKE %(tenants)s AND state = 'pending'",
            tenants=f"{prefix}%",
        )
        return int(count)

    def count_goods(self, prefix: str) -> int:
        """Return how many rows of these tenants in the adopted table are not as they were delivered last."""
        return len(self.rows(NOT_AS_DELIVERED, tenants=f"{prefix}%"))

    def never_deleted(self, users: Users) -> list[str]:
        """Return the deletions that were delivered and that no user made, a sentence each."""
        found = self.rows(
            "SELECT DISTINCT tenant, key FROM torture_goods_seen WHERE deleted AND tenant LIKE %(tenants)s",
            tenants=f"{users.prefix}%",
        )
        return [f"never deleted: row {key} of {tenant}" for tenant, key in found if (tenant, key) not in users.left]

    def forget_goods(self) -> None:
        """Delete all rows of the adopted table, and what TaskBridge has of them."""
        for statement in FORGET_GOODS:
            self.rows(statement)

    def copy_parcels(self) -> None:
        """Copy from the ledger into `deliveries` what handlers of parcels were done with since the last time."""
        self.ledger.read()
        with self._copying:
            new = self.ledger.parcels[self._copied :]
            if new:
                tenants, numbers, revisions, tokens = (list(column) for column in zip(*new, strict=True))
                self.rows(
                    "INSERT INTO taskbridge.deliveries (pipeline, tenant, external_id, revision, token) "
                    "SELECT %(pipeline)s, n.* FROM "
                    "unnest(%(tenants)s::text[], %(numbers)s::text[], %(revisions)s::bigint[], %(tokens)s::text[]) n "
                    "ON CONFLICT DO NOTHING RETURNING id",
                    pipeline=PARCELS,
                    tenants=tenants,
                    numbers=numbers,
                    revisions=revisions,
                    tokens=tokens,
                )
            self._copied += len(new)

    def rows(self, statement: str, **values: Any) -> list[Any]:
        """Return a statement's rows; tried again where Postgres has dropped the connection."""

        def query() -> list[Any]:
            with self.engine.begin() as connection:
                found = connection.exec_driver_sql(statement, values)
                return list(found) if found.returns_rows else []

        return self.in_spite_of_outages(query)

    def in_spite_of_outages(self, ask: Callable[[], T]) -> T:
        """Return what `ask` returns; a server may be away meanwhile, or have dropped connections."""
        last = time.monotonic() + BACK_WITHIN
        while True:
            try:
                return ask()
            except Exception:
                if not self.workers.up.wait(BACK_WITHIN) or time.monotonic() > last:
                    raise
                self.engine.dispose()
                time.sleep(0.05)


@contextmanager
def arena(without: str | None, keep: Path | None, servers: Collection[str] = ()) -> Iterator[Arena]:
    """Open an arena; one per process, since producers use the app of the process. `keep` takes a copy of its books.

    `servers`: which of `verification.torture.faults.SERVERS` it has.
    """
    # The observer is forked while this process has no threads yet.
    with observe() as stalls, open_directory() as directory, ExitStack() as stack:
        postgres, redis, pooler = PostgresHere(directory), _redis(directory, stack, servers), None
        stack.callback(postgres.close)
        postgres.start()
        urls: dict[str, Any] = {"postgres_url": postgres.url}
        if "pgbouncer" in servers:
            pooler = stack.enter_context(PgBouncer(postgres.url, directory, size=POOL))
            urls = {"postgres_url": pooler.url, "listen_url": postgres.url}
        to_producers, to_worker = Proxy(redis.port), Proxy(redis.port)
        for proxy in (to_producers, to_worker):
            stack.callback(proxy.close)
        settings = Settings(**urls, redis_url=redis.url, **SETTINGS)
        ours = settings.as_environment()
        os.environ.update(ours | _behind(to_producers, redis))
        books = directory / "books"
        books.mkdir()
        if keep is not None:
            stack.callback(_keep, directory, keep)
        _prepare_database(postgres.url)
        adopted = command(*ADOPTS)
        assert adopted.status == 0, adopted.errors
        for name in (PARCELS, GOODS):
            pipeline(name, policy=LatencyNeutral())(_never_called)  # so that events can be sent to it
        runtime = runtime_of(app)
        stack.callback(runtime.forget)
        outside = {
            name: value for name, value in os.environ.items() if not name.startswith(("TASKBRIDGE_", "TORTURE_"))
        }
        extra = {"PYTHONPATH": str(ROOT), "TASKBRIDGE_PIPELINES": "verification.torture.pipelines"}
        if without is not None:
            extra["TORTURE_WITHOUT"] = without
        workers = Workers(books, {**outside, **ours, **extra}, _behind(to_worker, redis))
        workers.up.set()
        stack.callback(workers.close)
        workers.open(FIRST_WORKERS)
        made = Arena(postgres, redis, to_producers, to_worker, pooler, workers, Ledger(books), settings, books, stalls)
        stack.callback(made.engine.dispose)
        yield made


def _redis(directory: Path, stack: ExitStack, servers: Collection[str]) -> RedisHere | RedisBehindSentinel:
    if "sentinel" in servers:
        return RedisBehindSentinel(directory, stack)
    redis = RedisHere(directory)
    stack.callback(redis.close)
    redis.start()
    return redis


def _behind(proxy: Proxy, redis: RedisHere | RedisBehindSentinel) -> dict[str, str]:
    """Return what lets a process reach Redis by a proxy. Where Redis is behind Sentinel, that names the addresses."""
    if isinstance(redis, RedisBehindSentinel):
        return {}
    url = make_url(redis.url).set(port=proxy.port).render_as_string(hide_password=False)
    return {"TASKBRIDGE_REDIS_URL": url}


def command(*words: str) -> Said:
    """Run a command of `taskbridge` against the servers of this process's arena."""
    with tempfile.TemporaryDirectory() as directory:
        out, errors = Path(directory) / "out", Path(directory) / "errors"
        status = Forked(PROGRAM, words, os.environ, ROOT, out, errors).wait(COMMAND_ENDS_WITHIN)
        return Said(status, out.read_text(), errors.read_text())


def _never_called(_: object) -> None:
    """Stand for the handler of the workers."""


def _prepare_database(url: str) -> None:
    engine = connect(url)
    migrate(engine)
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        # The sooner Postgres looks for deadlocks, the more often a user would be the victim of one with us.
        connection.exec_driver_sql("ALTER SYSTEM SET deadlock_timeout = '100ms'")
        connection.exec_driver_sql("SELECT pg_reload_conf()")
    with engine.begin() as connection:
        for statement in TABLES:
            connection.exec_driver_sql(statement)
        # Not unique on purpose: it must be able to show that two batches advanced from one position.
        connection.exec_driver_sql("CREATE TABLE torture_advances (tenant text, position bigint, token text)")
        connection.exec_driver_sql("CREATE INDEX ON torture_advances (tenant, position)")
        # Of what is copied from the ledger, each revision comes once.
        connection.exec_driver_sql(
            "CREATE UNIQUE INDEX torture_parcels ON taskbridge.deliveries (tenant, external_id, revision) "
            f"WHERE pipeline = '{PARCELS}'"
        )
        for statement in PREPARES:
            connection.exec_driver_sql(statement)
        connection.exec_driver_sql("CREATE TABLE torture_totals (tenant text PRIMARY KEY, taken bigint)")
        connection.exec_driver_sql(
            "CREATE TABLE torture_promises (kept text REFERENCES torture_totals DEFERRABLE INITIALLY DEFERRED)"
        )
    engine.dispose()


def _keep(directory: Path, keep: Path) -> None:
    target = keep / directory.name
    shutil.copytree(directory / "books", target / "books")
    for log in directory.glob("*.log"):
        shutil.copy(log, target)
