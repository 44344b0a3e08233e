"""What very many waiting tenants cost, and how late the runs of others start meanwhile.

The waiting tenants are due in an hour. Beside them some tenants with a record each come due one after another, and a
worker runs them; their lateness is the time from when they were due to the handler's call. The baseline is the same
worker while nobody waits.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from benchmarks.cpu import process, seconds_of
from benchmarks.marks import MARKS, Marks
from benchmarks.report import Benchmark, Cell, Option, Report, Table, Target
from benchmarks.rounds import decades, slope, summary
from benchmarks.stage import stage, wait_until, worker
from benchmarks.waiting import PIPELINE, let_wait, record_each
from taskbridge.process.runtime import Runtime

__all__ = ["TENANTS"]

SMALLEST: Final = 1_000
LONG_MS: Final = 3_600_000
HEAD_START_MS: Final = 2_000


class _Waiting(NamedTuple):
    """Percent of a core used by Redis and the worker's main process, bytes of Redis per tenant, lateness in ms."""

    idle: float
    waiting: float
    bytes_each: float
    late: Sequence[float]


def _measure(tenants: int, due: int, seconds: float) -> Report:
    """Let up to `tenants` wait; at each size `due` others come due over `seconds`."""
    found = {size: _at(size, due, seconds) for size in decades(SMALLEST, tenants)}
    rows: list[Sequence[Cell]] = [
        (f"{size:,}", one.idle, one.waiting, one.waiting / one.idle, one.bytes_each, *summary(one.late))
        for size, one in found.items()
    ]
    growth = slope([(size, one.waiting) for size, one in found.items()])
    largest, at_most = max(found), found[max(found)]
    return Report(
        {"tenants": tenants, "due": due, "seconds": seconds},
        [
            Table(
                f"Waiting tenants, while {due:,} others come due in {seconds:g} s",
                (
                    "tenants",
                    "% of a core, nobody waits",
                    "% of a core",
                    "ratio",
                    "Redis, bytes each",
                    "late, median ms",
                    "p99 ms",
                    "longest ms",
                ),
                rows,
                "The CPU time is that of Redis and of the worker's main process before the others come due. Its slope "
                f"is {growth:.2g}. A slope of 0 means that the cost does not grow with the number of tenants.",
            )
        ],
        [
            Target("p99 of lateness, ms", summary(at_most.late).p99, 50),
            Target(f"bytes of Redis for each of {largest:,} tenants", at_most.bytes_each, 500),
            Target(f"CPU while {largest:,} wait, ratio to CPU while nobody waits", at_most.waiting / at_most.idle, 1.2),
        ],
    )


def _at(size: int, due: int, seconds: float) -> _Waiting:
    with stage() as (runtime, directory):
        marks = directory / "marks"
        with worker(runtime, directory, "--concurrency", "2", **{MARKS: str(marks)}) as pid:
            wait_until(lambda: runtime.redis.exists(runtime.keys.tailing(PIPELINE)), "the worker's ticker starts", 60)
            idle, before = _percent(runtime, pid, seconds), _memory(runtime)
            later = round(time.time() * 1000) + LONG_MS
            let_wait(runtime, {f"waiting-{at}": later for at in range(size)})
            waiting, each = _percent(runtime, pid, seconds), (_memory(runtime) - before) / size
            return _Waiting(idle, waiting, each, _lateness(runtime, marks, due, seconds))


def _lateness(runtime: Runtime, file: Path, due: int, seconds: float) -> list[float]:
    """Let `due` tenants come due over `seconds`; return how late each one's handler was called, in ms."""
    first = round(time.time() * 1000) + HEAD_START_MS + due
    moments = [first + round(at * seconds * 1000 / due) for at in range(due)]
    let_wait(runtime, {f"due-{at}": moment for at, moment in enumerate(moments)})
    record_each(runtime, [f"due-{at}" for at in range(due)])
    if time.time() * 1000 > first:
        raise TimeoutError(f"{due:,} tenants were not made to wait in time: measure fewer")
    marks = Marks(file)
    wait_until(lambda: marks.count() >= due, f"{due} tenants are handled", HEAD_START_MS / 1000 + seconds + 60)
    return [called * 1000 - moment for called, moment in zip(sorted(marks.since(0)), moments, strict=True)]


def _percent(runtime: Runtime, pid: int, seconds: float) -> float:
    """Return the percentage of a core that Redis and a process use over some seconds."""
    before, started = _cpu(runtime, pid), time.monotonic()
    time.sleep(seconds)
    return (_cpu(runtime, pid) - before) / (time.monotonic() - started) * 100


def _cpu(runtime: Runtime, pid: int) -> float:
    used: Any = runtime.redis.info("cpu")
    return float(used["used_cpu_sys"] + used["used_cpu_user"]) + seconds_of(process(pid))


def _memory(runtime: Runtime) -> int:
    used: Any = runtime.redis.info("memory")
    return int(used["used_memory"])


TENANTS: Final = Benchmark(
    "tenants",
    "A tenant that waits is a deadline in Redis and holds no worker slot.",
    "Milliseconds that a due run starts late, in 99 of 100 cases, while many tenants wait.",
    "Measures what waiting tenants cost: CPU time of Redis and of the worker's main process, and memory of Redis. "
    "Also measures how late other tenants' runs start meanwhile. The baseline is the same worker while nobody waits.",
    _measure,
    (
        Option("tenants", 100_000, 200, 1_000_000, "Most tenants; from 1,000 on, ten times as many each time."),
        Option("due", 1_000, 2, 100_000, "Tenants that come due at each size."),
        Option("seconds", 10.0, 0.1, 600, "Span over which they come due, and of each measurement of CPU time."),
    ),
    {"tenants": 200, "due": 20, "seconds": 0.5},
)
