"""How long it takes from a record that nobody notified to its handler, on an idle system.

Records come at random times, each of a tenant of its own. The clock starts just before the record is written, and
stops where the handler begins with it. Those of plain SQL are one INSERT each; those of producers that die are written
by a process each, which kills itself (SIGKILL) after its commit and before its event.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from benchmarks.report import Benchmark, Option, Report, Table, Target
from benchmarks.rounds import Summary, summary
from benchmarks.stage import stage, wait_until, worker
from taskbridge.process.runtime import Runtime

__all__ = ["DELAYS", "NO_EVENT", "SOURCE"]

SOURCE: Final = "bench-no-event"
DELAYS: Final = "TASKBRIDGE_BENCH_DELAYS"
"""The variable that names the file where the delays go, one a line, in milliseconds."""
HANDLERS: Final = "benchmarks.no_event_handlers"
BETWEEN: Final = 0.03
"""Seconds between two records, on average. The poller makes a pass every 0.2 s."""
WARM: Final = 20
INSERT: Final = """
INSERT INTO taskbridge.records (source, tenant, key, document) VALUES (%(source)s, %(tenant)s, '1', %(document)s)
"""
PRODUCERS: Final = f"""
import os, random, signal, sys, time
from taskbridge import notify_event, record
for at in range(int(sys.argv[1])):
    time.sleep(random.uniform(0, {2 * BETWEEN}))
    if not (child := os.fork()):
        record(f"dies-{{at}}", "1", {{"at": time.time()}}, source={SOURCE!r})
        os.kill(os.getpid(), signal.SIGKILL)
        notify_event(f"dies-{{at}}", {SOURCE!r})
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
"""


def _measure(records: int, concurrency: int) -> Report:
    """Measure so many records of each kind, with and without the listener."""
    found: dict[str, Summary] = {}
    with stage() as (runtime, directory):
        options = ("--concurrency", str(concurrency))
        for listens in (False, True):
            delays = directory / f"delays-{listens}"
            environment = {DELAYS: str(delays)} | ({"TASKBRIDGE_TAIL_LISTENS": "1"} if listens else {})
            with runtime.engine.begin() as connection:
                connection.exec_driver_sql("SELECT taskbridge.announce(%s, %s)", (SOURCE, listens))
            with worker(runtime, directory, *options, pipelines=HANDLERS, **environment):
                _insert(runtime, delays, f"warm-{listens}", WARM)
                suffix = ", with the listener" if listens else ""
                found[f"plain SQL{suffix}"] = summary(_insert(runtime, delays, f"sql-{listens}", records))
                if not listens:
                    found["producer died before its event"] = summary(_die(runtime, delays, records))
    return Report(
        {"records": records, "concurrency": concurrency},
        [
            Table(
                "From a record without an event to its handler",
                ("", "median ms", "p99 ms", "longest ms"),
                [(name, *one) for name, one in found.items()],
                f"{records:,} of each, every {BETWEEN * 1000:.0f} ms on average. The listener is off by default: it "
                "makes commits of a source wait for each other.",
            )
        ],
        [
            Target("p99 of plain SQL, ms", found["plain SQL"].p99, 500),
            Target("p99 of producers that died, ms", found["producer died before its event"].p99, 500),
            Target("median of plain SQL with the listener, ms", found["plain SQL, with the listener"].median, 10),
        ],
    )


def _insert(runtime: Runtime, delays: Path, prefix: str, records: int) -> list[float]:
    """Write so many records by plain SQL; return the delay of each."""
    before = len(_read(delays))
    with runtime.engine.execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
        for at in range(records):
            time.sleep(random.uniform(0, 2 * BETWEEN))  # noqa: S311 - no secret
            document = json.dumps({"at": time.time()})
            values = {"source": SOURCE, "tenant": f"{prefix}-{at}", "document": document}
            connection.exec_driver_sql(INSERT, values)
    return _after(delays, before, records)


def _die(runtime: Runtime, delays: Path, records: int) -> list[float]:
    """Let so many producers write a record each and die; return the delay of each."""
    before = len(_read(delays))
    environment = {**os.environ, **runtime.settings.as_environment(), "TASKBRIDGE_PIPELINES": HANDLERS}
    subprocess.run([sys.executable, "-c", PRODUCERS, str(records)], env=environment, check=True)
    return _after(delays, before, records)


def _after(delays: Path, before: int, records: int) -> list[float]:
    wait_until(lambda: len(_read(delays)) >= before + records, f"{records} records are handled", 60)
    return _read(delays)[before:]


def _read(delays: Path) -> list[float]:
    return [float(line) for line in delays.read_text(encoding="ascii").split()] if delays.exists() else []


NO_EVENT: Final = Benchmark(
    "no-event",
    "Nobody has to notify: records written by plain SQL, or by a producer that died, are found.",
    "Milliseconds from the commit of a record by plain SQL until its handler is called, in 99 of 100 cases. "
    "The section also has the figure for producers that died.",
    "Measures the time from a commit without an event until the handler is called with the record, on an idle system. "
    "Some records are written by plain SQL. Others are written by producers that are killed between commit and event.",
    _measure,
    (
        Option("records", 80, 2, 100_000, "Records of each kind, one by one."),
        Option("concurrency", 2, 1, 64, "Processes of each worker."),
    ),
    {"records": 5, "concurrency": 1},
)
