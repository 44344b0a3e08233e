"""How many tenants per second are handled when very many are due at once, and how much CPU time a run takes.

Every tenant has one pending record in Postgres. Ours wait for the delay of their criterion, all until the same moment;
the ticker publishes their runs, and each run claims its cursor, reads, calls the handler, advances the cursor durably
and settles. A task of plain Celery reads the tenant's record and no more (`read`), or marks it as done as well
(`finish`): without that a task that was lost or came twice goes unnoticed.
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import Final

from benchmarks import plain
from benchmarks.cpu import Cpu
from benchmarks.due import Ready, costs, drain, park, publish, speed_ratio, speeds, wait
from benchmarks.marks import MARKS
from benchmarks.report import Benchmark, Option, Report, Target
from benchmarks.rounds import interleaved
from benchmarks.stage import stage, wait_until, worker
from benchmarks.waiting import PIPELINE

__all__ = ["DRAIN"]

OURS: Final = "TaskBridge"
READ: Final = "plain Celery tasks that read"
FINISH: Final = "plain Celery tasks that read and mark as done"
PUBLISHED: Final = "plain Celery tasks that read, published at that moment"

WARM: Final = 100
NOTE: Final = (
    "Plain Celery's messages are in the queue before the measurement starts, except in the last row. TaskBridge's "
    "ticker publishes its messages during the measurement. Only TaskBridge and the tasks that mark records as done "
    "know afterwards which records were handled."
)


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
        [
            speeds(found, OURS, tenants, "tenants/s", f"{tenants:,} tenants due at once", NOTE),
            costs(found, tenants, "ms per tenant"),
        ],
        [
            Target(f"tenants/s, ratio to: {READ}", speed_ratio(found, OURS, READ), 2.0, at_least=True),
            Target(f"tenants/s, ratio to: {FINISH}", speed_ratio(found, OURS, FINISH), 1.0, at_least=True),
        ],
    )


DRAIN: Final = Benchmark(
    "drain",
    "Tenants that are due at the same moment are handled at the full speed of the workers.",
    "Tenants per second, divided by the speed of Celery tasks that only read the record.",
    "Measures how many tenants are handled per second if very many are due at once, and how much CPU time that takes. "
    "The baselines are plain Celery tasks with as many workers of the same kind. Some read the tenant's record, and "
    "some also mark it as done.",
    _measure,
    (
        Option("tenants", 5_000, 1, 1_000_000, "Tenants that are due, with a record each."),
        Option("workers", 1, 1, 64, "Workers."),
        Option("concurrency", 2, 1, 64, "Processes of each worker."),
        Option("rounds", 3, 1, 100, "Rounds."),
    ),
    {"tenants": 50, "workers": 1, "concurrency": 1, "rounds": 1},
)
