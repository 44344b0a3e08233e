"""How long it takes from an event to the first line of the handler, on an idle system.

Ours and plain Celery in turn, each with a tenant that it has not seen, whose record is in Postgres. Both workers run
all the time. The clock starts just before `delay` and stops in the handler's first line, which has the record.

Then the CPU time of all processes for such an event, its write and its end, beyond what they use while nothing happens.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

from benchmarks import plain, storm_handlers
from benchmarks.benchmark import Benchmark, Option
from benchmarks.cpu import Cpu
from benchmarks.marks import MARKS, Marks
from benchmarks.report import Cell, Report, Table, Target
from benchmarks.rounds import interleaved, summary
from benchmarks.stage import stage, wait_until, worker
from benchmarks.storm_handlers import PIPELINE
from taskbridge.integration.tasks import NOTIFY_TASK
from taskbridge.process.runtime import Runtime
from taskbridge.store import record

__all__ = ["FIRST_EVENT"]

GROUP: Final = 20
"""So many pairs are over before the lease of the first of them ends: no end of a lease is measured with them."""
WARM: Final = 20
ROUNDS: Final = 4
SPACING: Final = 0.03
"""Seconds from an event to the next one where CPU time is measured."""

OURS: Final = "TaskBridge"
READS: Final = "plain Celery that reads"
MARKS_IT: Final = "plain Celery that reads and marks as done"


class Subject(NamedTuple):
    """What writes a tenant's record, what sends its event, and where the handler's calls are marked."""

    write: Callable[[str], Any]
    send: Callable[[str], Any]
    marks: Marks


def _measure(events: int, costed: int, concurrency: int) -> Report:
    """Measure `events` of ours and as many of plain Celery; then the CPU time of `costed` of each."""
    with stage() as (runtime, directory):
        ours, theirs = directory / "ours", directory / "theirs"
        options = ("--concurrency", str(concurrency))
        with (
            worker(runtime, directory, *options, pipelines=storm_handlers.__name__, **{MARKS: str(ours)}) as our_pid,
            worker(runtime, directory, *options, app=plain.__name__, **{MARKS: str(theirs)}) as their_pid,
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
            cpus = {name: Cpu(runtime, {"worker": [our_pid if name == OURS else their_pid]}) for name in subjects}
            costs = {name: partial(_cost, runtime, subjects[name], cpus[name], costed // ROUNDS) for name in subjects}
            used = interleaved(costs, ROUNDS)
    of_ours, of_plain = (summary([seconds * 1000 for seconds in delays]) for delays in found.values())
    ratios = [one / other for one, other in zip(of_ours, of_plain, strict=True)]
    return Report(
        {"events": events, "costed": costed, "concurrency": concurrency},
        [
            Table(
                "From the event to the handler's first line",
                ("", "median ms", "p99 ms", "longest ms"),
                [(OURS, *of_ours), (READS, *of_plain), ("ratio", *ratios)],
                "The task of plain Celery reads the tenant's record and no more; TaskBridge has also begun the "
                "tenant's runner and claimed its cursor by then.",
            ),
            _cpu_table(used),
        ],
        [
            Target(
                "median, ratio",
                ratios[0],
                0.95,
                why="A run asks Redis whether it may begin, and claims its cursor, before it reads. The task of plain "
                "Celery has neither step",
            ),
            Target("p99, ratio", ratios[1], 1.1),
        ],
    )


def _cost(runtime: Runtime, subject: Subject, cpu: Cpu, events: int) -> dict[str, float]:
    """Return the CPU time of one event by group of processes, in microseconds, beyond that of the same time without."""
    write, send, marks = subject

    def used(number: int, seconds: float) -> tuple[dict[str, float], float]:
        prefix, first = secrets.token_hex(4), marks.count()
        before, began = cpu.seconds(), time.monotonic()
        for at in range(number):
            write(f"{prefix}-{at}")
            send(f"{prefix}-{at}")
            time.sleep(SPACING)
        wait_until(lambda: marks.count() - first >= number, "all are handled", 60)
        # Each look costs Redis something, so there is none before the last lease has ended.
        time.sleep(runtime.pipelines[PIPELINE].policy.spacing.lease / 1000)
        wait_until(lambda: not runtime.gate.active(PIPELINE), "all leases end", 60)
        time.sleep(max(0.0, began + seconds - time.monotonic()))
        after, passed = cpu.seconds(), time.monotonic() - began
        return {name: after[name] - before[name] for name in after}, passed

    busy, passed = used(events, 0.0)
    idle, _ = used(0, passed)
    return {name: (busy[name] - idle[name]) / events * 1e6 for name in busy}


def _cpu_table(used: Mapping[str, Sequence[Mapping[str, float]]]) -> Table:
    groups = list(next(iter(used.values()))[0])
    medians = {name: [median(one[group] for one in rounds) for group in groups] for name, rounds in used.items()}
    rows = {name: [*each, sum(each)] for name, each in medians.items()}
    ratios: list[Sequence[Cell]] = [
        (
            f"ratio to {name.removeprefix('plain Celery ')}",
            *(own / its for own, its in zip(rows[OURS], of, strict=True)),
        )
        for name, of in rows.items()
        if name != OURS
    ]
    return Table(
        "CPU time of one event",
        ("µs", *groups, "all"),
        [*((name, *of) for name, of in rows.items()), *ratios],
        "From the write of the record to the end of the lease, one event every 30 ms, medians of four rounds in turn. "
        "What the same processes use in as long a time without events is taken off.",
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
        MARKS_IT: Subject(write, tasks["finish"].delay, Marks(theirs)),
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
    "From an event to the handler.",
    "Measure how long it takes from an event to the first line of the handler with the record, on an idle system. The "
    "baseline is a task of plain Celery that reads the same record, in turn with ours.",
    _measure,
    (
        Option("events", 400, 2, 100_000, "Events of each, one by one."),
        Option("costed", 400, 4, 100_000, "Events of each whose CPU time is measured, in four rounds."),
        Option("concurrency", 2, 1, 64, "Processes of each worker."),
    ),
    {"events": 5, "costed": 8, "concurrency": 1},
)
