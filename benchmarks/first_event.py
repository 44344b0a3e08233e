"""How long it takes from an event to the first line of the handler, on an idle system.

TaskBridge and plain Celery take turns, each with a new tenant whose record is already in Postgres. Both workers run all
the time. The clock starts just before `delay` and stops in the handler's first line, when it has the record.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from benchmarks import plain, storm_handlers
from benchmarks.marks import MARKS, Marks
from benchmarks.report import Benchmark, Option, Report, Table, Target
from benchmarks.rounds import interleaved, summary
from benchmarks.stage import stage, wait_until, worker
from benchmarks.storm_handlers import PIPELINE
from taskbridge.integration.tasks import NOTIFY_TASK
from taskbridge.process.runtime import Runtime
from taskbridge.store import record

__all__ = ["FIRST_EVENT"]

GROUP: Final = 20
"""This many pairs are over before the first lease ends, so no end of a lease is measured with them."""
WARM: Final = 20

OURS: Final = "TaskBridge"
READS: Final = "a plain Celery task that reads"


class Subject(NamedTuple):
    """What writes a tenant's record, what sends its event, and where the handler's calls are marked."""

    write: Callable[[str], Any]
    send: Callable[[str], Any]
    marks: Marks


def _measure(events: int, concurrency: int) -> Report:
    """Measure `events` of ours and as many of plain Celery."""
    with stage() as (runtime, directory):
        ours, theirs = directory / "ours", directory / "theirs"
        options = ("--concurrency", str(concurrency))
        with (
            worker(runtime, directory, *options, pipelines=storm_handlers.__name__, **{MARKS: str(ours)}),
            worker(runtime, directory, *options, app=plain.__name__, **{MARKS: str(theirs)}),
        ):
            subjects = _subjects(runtime, ours, theirs)
            for subject in subjects.values():
                _warm(subject)
            found: dict[str, list[float]] = {name: [] for name in (OURS, READS)}
            for start in range(0, events, GROUP):
                wait_until(lambda: not runtime.gate.active(PIPELINE), "all leases end", 60)
                measured = {name: partial(_delay, f"{start}-", subjects[name]) for name in found}
                for name, delays in interleaved(measured, min(GROUP, events - start)).items():
                    found[name] += delays
    of_ours, of_plain = (summary([seconds * 1000 for seconds in delays]) for delays in found.values())
    ratios = [one / other for one, other in zip(of_ours, of_plain, strict=True)]
    return Report(
        {"events": events, "concurrency": concurrency},
        [
            Table(
                "From the event to the handler's first line",
                ("", "median ms", "p99 ms", "longest ms"),
                [(OURS, *of_ours), (READS, *of_plain), ("ratio", *ratios)],
                "Before its handler is called, TaskBridge has also begun the tenant's run and claimed its cursor.",
            ),
        ],
        [Target("median, ratio", ratios[0], 0.95), Target("p99, ratio", ratios[1], 1.1)],
    )


def _subjects(runtime: Runtime, ours: Path, theirs: Path) -> dict[str, Subject]:
    plain.prepare(runtime.engine)
    _, tasks = plain.make_app(runtime.settings.redis_url)

    def write(tenant: str) -> None:
        plain.write(runtime.engine, [tenant])

    return {
        OURS: Subject(
            lambda tenant: record(runtime.engine, PIPELINE, tenant, "1", {"number": "1"}),
            lambda tenant: runtime.app.tasks[NOTIFY_TASK].delay(tenant, PIPELINE),
            Marks(ours),
        ),
        READS: Subject(write, tasks["read"].delay, Marks(theirs)),
    }


def _warm(subject: Subject) -> None:
    """Let every process of the worker connect."""
    write, send, marks = subject
    first = marks.count()
    for at in range(WARM):
        write(f"warm-{at}")
        send(f"warm-{at}")
    wait_until(lambda: marks.count() - first >= WARM, "the workers are warm", 60)


def _delay(prefix: str, subject: Subject) -> float:
    """Return the seconds from an event of a new tenant to the handler's first line."""
    write, send, marks = subject
    before = marks.count()
    tenant = f"{prefix}{before}"
    write(tenant)
    began = time.time()
    send(tenant)
    wait_until(lambda: marks.count() > before, f"the handler is called for {tenant}", 60)
    (called,) = marks.since(before)
    return called - began


FIRST_EVENT: Final = Benchmark(
    "first-event",
    "The first event of a burst is handled at once; no timer delays it.",
    "The time from an event to the handler's first line, divided by that of a plain Celery task (median).",
    "Measures the time from an event until the handler is called with the record, on an idle system. The baseline is "
    "a plain Celery task that reads the same record. TaskBridge and Celery take turns.",
    _measure,
    (
        Option("events", 400, 2, 100_000, "Events of each, one by one."),
        Option("concurrency", 2, 1, 64, "Processes of each worker."),
    ),
    {"events": 5, "concurrency": 1},
    unmet="A run asks Redis whether it may begin, and claims its cursor, before it reads. The plain task does neither.",
)
