"""How many tenants per second are swept when very many are due at once, and what CPU time a run costs.

Every tenant has one pending record in Postgres. Ours wait for the delay of their criterion, all until the same moment;
the ticker publishes their runs, and each run claims its cursor, reads, calls the handler, advances the cursor durably
and settles. A task of plain Celery reads the tenant's record and no more (`read`), or marks it as done as well
(`finish`): without that a task that was lost or came twice goes unnoticed.
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from statistics import median
from typing import Final

from benchmarks import plain
from benchmarks.benchmark import Benchmark, Option
from benchmarks.cpu import Cpu
from benchmarks.due import Drained, Ready, drain, park, publish, wait
from benchmarks.lateness import PIPELINE
from benchmarks.marks import MARKS
from benchmarks.report import Cell, Report, Table, Target
from benchmarks.rounds import interleaved, median_ratio
from benchmarks.stage import stage, wait_until, worker

__all__ = ["DRAIN"]

OURS: Final = "TaskBridge"
READ: Final = "plain Celery, reads"
FINISH: Final = "plain Celery, reads and marks as done"
PUBLISHED: Final = "plain Celery, reads, published at that moment"

WARM: Final = 100


def _measure(tenants: int, workers: int, concurrency: int, rounds: int) -> Report:
    """Drain `tenants` per round and subject."""
    with stage() as (runtime, directory), ExitStack() as stack:
        plain.prepare(runtime.engine)
        _, tasks = plain.make_app(runtime.settings.redis_url)
        marks = directory / "marks"
        pids: dict[str, list[int]] = {
            app: [
                stack.enter_context(
                    worker(runtime, directory, "--concurrency", str(concurrency), app=app, **{MARKS: str(marks)})
                )
                for _ in range(workers)
            ]
            for app in ("taskbridge", "benchmarks.plain")
        }
        wait_until(lambda: runtime.redis.exists(runtime.keys.tailing(PIPELINE)), "the worker's ticker starts", 60)
        subjects: dict[str, Ready] = {
            OURS: partial(wait, runtime),
            READ: partial(park, runtime, tasks["read"]),
            FINISH: partial(park, runtime, tasks["finish"]),
            PUBLISHED: partial(publish, runtime, tasks["read"]),
        }
        measured = partial(drain, runtime, marks)
        for ready in subjects.values():
            measured(ready, Cpu(runtime, {}), min(WARM, tenants))
        cpus = {
            name: Cpu(runtime, {"worker": pids["taskbridge" if name == OURS else plain.__name__]}) for name in subjects
        }
        found = interleaved(
            {name: partial(measured, ready, cpus[name], tenants) for name, ready in subjects.items()}, rounds
        )
    return Report(
        {"tenants": tenants, "workers": workers, "concurrency": concurrency, "rounds": rounds},
        [_speeds(found, tenants), _costs(found, tenants)],
        [
            Target(f"tenants/s, ratio to: {READ}", _ratio(found, READ), 1.0, at_least=True),
            Target(f"tenants/s, ratio to: {FINISH}", _ratio(found, FINISH), 1.0, at_least=True),
        ],
    )


def _ratio(found: dict[str, list[Drained]], baseline: str) -> float:
    """Return how many times as fast ours is."""
    return median_ratio([one.seconds for one in found[baseline]], [one.seconds for one in found[OURS]])


def _speeds(found: dict[str, list[Drained]], tenants: int) -> Table:
    rows: list[list[Cell]] = [
        [name, tenants / median(one.seconds for one in rounds), _ratio(found, name)] for name, rounds in found.items()
    ]
    return Table(
        f"{tenants:,} tenants due at once",
        ("", "tenants/s", "ratio of TaskBridge to it"),
        rows,
        "Messages of plain Celery lie in the queue when the clock starts, unless it says otherwise; those of "
        "TaskBridge are published by its ticker, in the time that is measured. Only TaskBridge and the task that marks "
        "as done know afterwards what was handled.",
    )


def _costs(found: dict[str, list[Drained]], tenants: int) -> Table:
    groups = list(next(iter(found.values()))[0].cpu)
    rows: list[list[Cell]] = []
    for name, rounds in found.items():
        used = [median(one.cpu[group] for one in rounds) / tenants * 1000 for group in groups]
        rows.append([name, *used, sum(used)])
    return Table("CPU time", ("ms per tenant", *groups, "all"), rows)


DRAIN: Final = Benchmark(
    "drain",
    "Tenants per second, when many are due at once.",
    "Measure how many tenants per second are swept when very many are due at once, and what CPU time that takes. The "
    "baselines are plain Celery tasks that read the tenant's record, and that read it and mark it as done, with as "
    "many workers of the same kind.",
    _measure,
    (
        Option("tenants", 5_000, 1, 1_000_000, "Tenants that are due, with a record each."),
        Option("workers", 1, 1, 64, "Workers."),
        Option("concurrency", 2, 1, 64, "Processes of each worker."),
        Option("rounds", 3, 1, 100, "Rounds."),
    ),
    {"tenants": 50, "workers": 1, "concurrency": 1, "rounds": 1},
)
