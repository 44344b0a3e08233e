"""A deployment of one test: its own database, its own Redis database, real workers, a producer in this process."""

from __future__ import annotations

import os
import signal
import socket
import stat
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import redis
from celery import Celery
from sqlalchemy import Engine, QueuePool, make_url

from taskbridge.gate import Gate
from taskbridge.integration.app import make_app
from taskbridge.process.runtime import runtime_of
from taskbridge.settings import Settings
from taskbridge.store import record_invoice
from tests.forked import CELERY, Forked
from tests.waiting import wait_until

ROOT = Path(__file__).resolve().parent.parent
WORKER_STARTS_WITHIN = 20.0
ENDS_WITHIN = 45.0
"""Seconds. A task that reaches a pool process in the moment of SIGTERM is one that Celery's main process has dropped by
then: it does not read the result, and billiard lets the pool process wait 30 s for its reader."""

# Celery's queues have fixed names, so tests that run workers are kept apart by Redis database. 0 and 15 are others'.
_databases = cycle(range(1, 15))


def _unused(redis_url: str) -> str:
    """The URL of a database of this Redis server that no other process is connected to and nobody waits in.

    A worker that another test left behind would take this test's messages.
    """
    ours = set(_own_addresses())
    with redis.Redis.from_url(redis_url, decode_responses=True) as client:
        busy = {one["db"] for one in client.client_list() if one["addr"] not in ours or "b" in one["flags"]}
    database = next(name for name in map(str, islice(_databases, 14)) if name not in busy)
    return make_url(redis_url).set(database=database).render_as_string(hide_password=False)


def _own_addresses() -> Iterator[str]:
    """Where this process's connections come from. Each file is asked: the system's list has those of all processes."""
    for descriptor in [int(entry.name) for entry in Path("/dev/fd").iterdir()]:
        with suppress(OSError):  # that of the listing itself is closed
            if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                with socket.socket(fileno=os.dup(descriptor)) as copy:
                    address = copy.getsockname()
                if isinstance(address, tuple):
                    yield f"{address[0]}:{address[1]}"


def worker_command(*options: str, app: str = "taskbridge") -> list[str]:
    """Return the command of a worker that greets no others at its start."""
    return [sys.executable, "-m", "celery", *_arguments(app, options)]


def _arguments(app: str, options: Sequence[str], *, greets: bool = False) -> list[str]:
    return ["-A", app, "worker", *(() if greets else ("--without-mingle", "--without-gossip")), *options]


class Worker:
    """One `celery -A taskbridge worker`, or of another app, in a session of its own."""

    def __init__(
        self,
        environment: dict[str, str],
        log: Path,
        options: Sequence[str],
        *,
        app: str = "taskbridge",
        greets: bool = False,
    ) -> None:
        self.log = log
        log.touch()
        arguments = _arguments(app, ("--loglevel", "INFO", *options), greets=greets)
        self.process = Forked(CELERY, arguments, environment, ROOT, log)

    def wait_until_ready(self) -> None:
        wait_until(
            lambda: self.process.poll() is not None or " ready." in self.text(), "worker ready", WORKER_STARTS_WITHIN
        )
        assert self.process.poll() is None, self.text()

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def signal_all(self, number: signal.Signals) -> None:
        """Send a signal to the worker and its pool processes at once."""
        os.killpg(self.process.pid, number)

    def kill(self) -> None:
        """Kill -9 the worker and its pool processes, as a machine that loses power would."""
        self.signal_all(signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        """End the worker as an operator would (warm shutdown), and what is left of it after a test that killed it."""
        try:
            if self.process.poll() is None:
                self.process.terminate()
                self.process.wait(timeout=ENDS_WITHIN)
        finally:
            with suppress(ProcessLookupError):
                self.signal_all(signal.SIGKILL)
            self.process.wait()


class Deployment:
    """Settings, a producer, a ledger outside the project's tables, and workers."""

    def __init__(self, engine: Engine, redis_url: str, logs: Path, **settings: Any) -> None:
        self.engine = engine
        self.logs = logs
        url = _unused(redis_url)
        postgres_url = engine.url.render_as_string(hide_password=False)
        # A machine that runs many tests may be slow.
        settings = {"notify_timeout": 10} | settings
        self.settings = Settings(postgres_url=postgres_url, redis_url=url, **settings)
        self.redis = redis.Redis.from_url(url, decode_responses=True)
        self.redis.flushdb()
        bridge = make_app(self.settings)
        self.app: Celery = bridge.app
        self.notify_event = bridge.notify_event
        with engine.begin() as connection:
            connection.exec_driver_sql(
                "CREATE TABLE ledger (id bigserial, host text, pid int, tenant text, token text, numbers text[], "
                "began timestamptz DEFAULT clock_timestamp(), ended timestamptz)"
            )

    @property
    def gate(self) -> Gate:
        return runtime_of(self.app).gate

    def environment(self, **extra: str) -> dict[str, str]:
        """What a worker is started with."""
        ours = self.settings.as_environment()
        kept = {name: value for name, value in os.environ.items() if not name.startswith("TASKBRIDGE_")}
        return {**kept, **ours, "TASKBRIDGE_PIPELINES": "tests.pipelines", "PYTHONPATH": str(ROOT), **extra}

    @contextmanager
    def worker(
        self,
        *options: str,
        app: str = "taskbridge",
        greets: bool = False,
        handler_seconds: float = 0.0,
        batch_size: int = 500,
        **extra: str,
    ) -> Iterator[Worker]:
        """Run a worker whose handler takes `handler_seconds` per batch and writes the ledger; `extra` are variables.

        With `greets` it has gossip and mingle, as one that is started without options.
        """
        name = f"worker-{len(list(self.logs.glob('worker-*')))}"
        environment = self.environment(
            TEST_HANDLER_SECONDS=str(handler_seconds), TEST_BATCH_SIZE=str(batch_size), **extra
        )
        arguments = ["-n", f"{name}@test", "-c", "2", *options]
        worker = Worker(environment, self.logs / f"{name}.log", arguments, app=app, greets=greets)
        try:
            worker.wait_until_ready()
            yield worker
        finally:
            worker.stop()

    def save(self, tenant: str, *numbers: str, notify: bool = True) -> None:
        """Commit invoices one by one, each with its event, as webhooks would."""
        for number in numbers:
            record_invoice(self.engine, tenant, number, {"number": number})
            if notify:
                self.notify_event.delay(tenant)

    def execute(self, statement: str, values: tuple[Any, ...] | None = None) -> None:
        """Execute a statement, and commit it."""
        with self.engine.begin() as connection:
            connection.exec_driver_sql(statement, values)

    def rows(self, statement: str) -> list[Any]:
        with self.engine.connect() as connection:
            return list(connection.exec_driver_sql(statement))

    def delivered(self, tenant: str) -> list[list[str]]:
        """Batches that were given to the handler, oldest first, whether or not they took effect."""
        return [
            numbers for owner, numbers in self.rows("SELECT tenant, numbers FROM ledger ORDER BY id") if owner == tenant
        ]

    def deliveries(self) -> list[tuple[str, str]]:
        """Tenant and invoice number of each delivery that took effect."""
        return [tuple(row) for row in self.rows("SELECT tenant, external_id FROM taskbridge.deliveries ORDER BY id")]

    def idle(self) -> bool:
        """Whether no runner is left and nothing is pending."""
        runtime = runtime_of(self.app)
        return not runtime.gate.active("invoices") and not [*runtime.pending("invoices")]

    def wait_until_idle(self, seconds: float = 15.0) -> None:
        wait_until(self.idle, "idle", seconds)

    def close(self) -> None:
        engine = runtime_of(self.app).engine
        # A page that was given up may still be read in its thread; a session that comes back later is never closed.
        wait_until(lambda: not isinstance(engine.pool, QueuePool) or not engine.pool.checkedout(), "sessions are back")
        engine.dispose()
        self.app.close()
        self.redis.flushdb()
        self.redis.close()
