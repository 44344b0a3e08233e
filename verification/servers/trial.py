"""One row: records are written while a server fails, and real workers handle them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import psycopg

from taskbridge.errors import TaskBridgeError, Unavailable
from taskbridge.integration.app import make_app
from taskbridge.process.runtime import runtime_of
from taskbridge.producer.producer import Bridge
from taskbridge.settings import Settings
from taskbridge.store.db import parameters_of
from tests.deployment import ROOT, Worker
from tests.waiting import wait_until

__all__ = ["Result", "Stage", "ask_doctor", "refusal", "trial"]

TENANTS = [f"tenant-{number}" for number in range(20)]
RECORDS = 300
EVERY = 0.02
"""Seconds between two records of all producers."""
WRITTEN_WITHIN = 120.0
HANDLED_WITHIN = 120.0
DOCTOR_WITHIN = 30.0
"""Seconds in which workers are connected to all servers again."""
INSERT = "INSERT INTO taskbridge.records (source, tenant, key, document) VALUES ('invoices', %s, 'sql', '{}')"
HANDLED = """
SELECT r.tenant, r.key, count(d.id),
       extract(epoch FROM max(pg_xact_commit_timestamp(d.xmin)) - pg_xact_commit_timestamp(r.xid::xid))
FROM taskbridge.records r
LEFT JOIN taskbridge.deliveries d ON (d.tenant, d.external_id, d.revision) = (r.tenant, r.key, r.revision)
GROUP BY r.tenant, r.key, r.xid
"""
"""How often each record was handled, and how many seconds lay between the two commits."""


@dataclass
class Stage:
    """The servers of a row, as producers and workers reach them, and what is done to them in the middle."""

    postgres_url: str
    redis_url: str
    version: str
    strike: Callable[[], object]
    broker_url: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    options: tuple[str, ...] = ()
    """Options of the workers."""
    environment: Mapping[str, str] = field(default_factory=dict)

    def all_settings(self) -> Settings:
        """Return the settings of all processes."""
        return Settings(self.postgres_url, self.redis_url, broker_url=self.broker_url, **self.settings)

    def variables(self) -> dict[str, str]:
        """Return the environment of all processes."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("TASKBRIDGE_")}
        return {**kept, **self.all_settings().as_environment(), "PYTHONPATH": str(ROOT), **self.environment}


class Result(NamedTuple):
    """What a row has shown."""

    is_as_expected: bool
    once: str
    latest: str
    doctor: list[tuple[str, str]]


def trial(stage: Stage, database_url: str, directory: Path) -> Result:
    """Write records while the server fails, and account for each. `database_url` leads to Postgres itself."""
    variables = stage.variables()
    with ExitStack() as stack:
        workers = []
        for name in ("first", "second"):
            worker = Worker(variables, directory / f"{name}.log", ["-n", f"{name}@servers", "-c", "2", *stage.options])
            stack.callback(worker.stop)
            workers.append(worker)
        for worker in workers:
            worker.wait_until_ready()
        stack.enter_context(patch.dict(os.environ, variables, clear=True))
        bridge = make_app(stage.all_settings())
        stack.callback(bridge.app.close)
        stack.callback(runtime_of(bridge.app).engine.dispose)
        _write(stage, bridge)
        account = stack.enter_context(psycopg.connect(**parameters_of(database_url), autocommit=True))
        with suppress(AssertionError):
            wait_until(lambda: all(times for _, _, times, _ in account.execute(HANDLED)), "handled", HANDLED_WITHIN)
        doctor = ask_doctor(variables, until_ok=DOCTOR_WITHIN)
        handled = account.execute(HANDLED).fetchall()
        counts = [times for *_, times, _ in handled]
        ended = [worker.log.name for worker in workers if worker.process.poll() is not None]
    wrong = [f"{counts.count(0)} not handled"] if 0 in counts else []
    wrong += [f"{sum(count > 1 for count in counts)} more than once"] if max(counts) > 1 else []
    wrong += [f"only {len(counts)} written"] if len(counts) != RECORDS + len(TENANTS) else []
    wrong += [f"the worker of {name} ended" for name in ended]
    latest = max((seconds for *_, seconds in handled if seconds is not None), default=0)
    return Result(not wrong, ", ".join(wrong) or f"all {len(counts)}", f"{latest:.1f}", doctor)


def refusal(stage: Stage, text: str, directory: Path) -> Result:
    """Let a worker and doctor refuse servers that TaskBridge cannot use, each in one sentence that has `text`."""
    variables = stage.variables()
    worker = Worker(variables, directory / "refused.log", ["-c", "1", *stage.options])
    try:
        wait_until(lambda: worker.process.poll() is not None, "the worker refuses to start")
    finally:
        worker.stop()
    sentences = [line for line in worker.text().splitlines() if line.startswith("taskbridge: ")]
    doctor = ask_doctor(variables)
    fits = len(sentences) == 1 and text in sentences[0] and "Traceback" not in worker.text()
    fits = fits and any(text in found for _, found in doctor)
    return Result(fits, "refused" if fits else worker.text(), "", doctor)


def _write(stage: Stage, bridge: Bridge) -> None:
    """Write a third of the records before the strike, a third after it has begun, and a third when it is over."""

    def write(part: int) -> None:
        for number in range(part * RECORDS // 3, (part + 1) * RECORDS // 3):
            written.append(threads.submit(_record, bridge, TENANTS[number % len(TENANTS)], str(number)))
            time.sleep(EVERY)

    with ThreadPoolExecutor(16) as threads:
        written = list[Future[None]]()
        write(0)
        strike = threads.submit(stage.strike)
        written += [threads.submit(_insert, stage, tenant) for tenant in TENANTS]
        write(1)
        strike.result()
        write(2)
        for one in written:
            one.result()


def _record(bridge: Bridge, tenant: str, key: str) -> None:
    def is_recorded() -> bool:
        with suppress(TaskBridgeError):
            bridge.record(tenant, key, {"number": key}, source="invoices")
            return True
        return False

    wait_until(is_recorded, "a record is written", WRITTEN_WITHIN)
    with suppress(Unavailable):
        bridge.notify_event.delay(tenant)


def _insert(stage: Stage, tenant: str) -> None:
    def is_inserted() -> bool:
        parameters = {**parameters_of(stage.postgres_url), "prepare_threshold": None}
        # A pooler that is killed may also mix up answers.
        with suppress(psycopg.OperationalError, psycopg.InternalError), psycopg.connect(**parameters) as connection:
            connection.execute(f"{INSERT} ON CONFLICT DO NOTHING", (tenant,))
            return True
        return False

    wait_until(is_inserted, "a record is inserted", WRITTEN_WITHIN)


def ask_doctor(variables: Mapping[str, str], *, until_ok: float = 0.0) -> list[tuple[str, str]]:
    """Return the warnings and problems of `taskbridge doctor`, each with its text, such as ("warning: work", ...).

    While it has problems, it is asked again for up to `until_ok` seconds.
    """
    program, ends = Path(sys.executable).with_name("taskbridge"), time.monotonic() + until_ok
    while True:
        done = subprocess.run([program, "doctor", "--json"], env=variables, capture_output=True, text=True, check=False)
        assert done.stdout, done.stderr
        answer = json.loads(done.stdout)
        if answer["level"] != "problem" or time.monotonic() > ends:
            break
    return [(f"{one['level']}: {one['check']}", one["text"]) for one in answer["findings"] if one["level"] != "ok"]
