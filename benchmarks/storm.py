"""How many runs per second begin when very many tenants send their first event at once.

Every tenant has one record and one event, and all run messages are queued when the clock starts. Our run reads the
record and advances the cursor durably. The tasks of plain Celery do nothing, read the record, or also mark it as done.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Final

from benchmarks import plain
from benchmarks.cpu import Cpu
from benchmarks.due import Ready, costs, drain, let_go, park, speed_ratio, speeds
from benchmarks.marks import MARKS
from benchmarks.report import Benchmark, Option, Report, Target
from benchmarks.rounds import interleaved
from benchmarks.stage import stage, wait_until, worker
from benchmarks.storm_handlers import PIPELINE
from taskbridge.gate import Queue
from taskbridge.integration.app import make_app
from taskbridge.process.runtime import Runtime

__all__ = ["STORM"]

OURS: Final = "TaskBridge"
NOTHING: Final = "plain Celery tasks that do nothing"
READ: Final = "plain Celery tasks that read"
FINISH: Final = "plain Celery tasks that read and mark as done"
WARM: Final = 100
NOTE: Final = (
    "All messages are in the queue before the measurement starts. Only TaskBridge and the tasks that mark records as "
    "done know afterwards which records were handled."
)
PARKING: Final = "parked."


def _measure(tenants: int, workers: int, concurrency: int, threads: int, rounds: int) -> Report:
    """Let `tenants` send their first event, per round and subject."""
    # Messages that wait for the clock to start are not lost: they must not be published again.
    pool = "threads" if threads else "prefork"
    with stage(republish_after=3_600.0) as (runtime, directory), ExitStack() as stack:
        plain.prepare(runtime.engine)
        _, tasks = plain.make_app(runtime.settings.redis_url)
        marks = directory / "marks"
        options = ("--concurrency", str(concurrency), "--pool", pool)
        pids: dict[str, list[int]] = {
            app: [
                stack.enter_context(
                    worker(
                        runtime,
                        directory,
                        *options,
                        app=app,
                        pipelines="benchmarks.storm_handlers",
                        **{MARKS: str(marks)},
                    )
                )
                for _ in range(workers)
            ]
            for app in ("taskbridge", plain.__name__)
        }
        wait_until(lambda: runtime.redis.exists(runtime.keys.tailing(PIPELINE)), "the worker's ticker starts", 60)
        subjects: dict[str, Ready] = {
            OURS: partial(_storm, runtime),
            NOTHING: partial(park, runtime, tasks["nothing"]),
            READ: partial(park, runtime, tasks["read"]),
            FINISH: partial(park, runtime, tasks["finish"]),
        }
        measured = partial(drain, runtime, marks, pipeline=PIPELINE)
        for ready in subjects.values():
            measured(ready, Cpu(runtime, {}), min(WARM, tenants))
        cpus = {
            name: Cpu(runtime, {"worker": pids["taskbridge" if name == OURS else plain.__name__]}) for name in subjects
        }
        found = interleaved(
            {name: partial(measured, ready, cpus[name], tenants) for name, ready in subjects.items()}, rounds
        )
    return Report(
        {
            "tenants": tenants,
            "workers": workers,
            "concurrency": concurrency,
            "threads": threads,
            "rounds": rounds,
        },
        [
            speeds(found, OURS, tenants, "runs/s", f"{tenants:,} first events that wait", NOTE),
            costs(found, tenants, "ms per run"),
        ],
        [
            Target(f"runs/s, ratio to: {NOTHING}", speed_ratio(found, OURS, NOTHING), 1.5, at_least=True),
            Target(
                f"runs/s, ratio to: {FINISH}",
                speed_ratio(found, OURS, FINISH),
                2.5,
                at_least=True,
            ),
        ],
    )


def _storm(runtime: Runtime, names: list[str]) -> Callable[[], float]:
    """Send an event of each tenant. The messages are in a queue without consumers; renaming it starts the clock."""
    parking = make_app(runtime.settings)
    parking.app.conf.broker_transport_options = {
        **parking.app.conf.broker_transport_options,
        "global_keyprefix": PARKING,
    }
    # The events come first: the poller would start a tenant whose record it finds alone.
    parking.notify_many(names, PIPELINE)
    _write(runtime, names)
    queue = runtime.keys.queue(Queue.FIRST)
    return partial(let_go, runtime, f"{PARKING}{queue}", queue)


def _write(runtime: Runtime, names: Sequence[str]) -> None:
    with runtime.engine.begin() as connection:
        connection.exec_driver_sql(
            "INSERT INTO taskbridge.records (source, key, tenant, document) "
            "SELECT %s, name, name, '{}' FROM unnest(%s::text[]) name",
            (PIPELINE, list(names)),
        )


STORM: Final = Benchmark(
    "storm",
    "Batching costs no throughput, even if nothing can be batched.",
    "Runs per second, divided by the speed of Celery tasks that do nothing.",
    "Measures how many runs begin per second if very many tenants have one first event each, all at once. The "
    "baselines are plain Celery tasks with as many workers of the same kind. Some do nothing, some read the tenant's "
    "record, and some also mark it as done.",
    _measure,
    (
        Option("tenants", 5_000, 1, 1_000_000, "Tenants, with a record and an event each."),
        Option("workers", 1, 1, 64, "Workers."),
        Option("concurrency", 2, 1, 64, "Processes or threads of each worker."),
        Option("threads", 0, 0, 1, "1: pools of threads; 0: of processes."),
        Option("rounds", 3, 1, 100, "Rounds."),
    ),
    {"tenants": 50, "workers": 1, "concurrency": 1, "threads": 0, "rounds": 1},
    unmet="TaskBridge keeps all cores busy, while plain Celery's tasks wait for their worker's main process. So slow "
    "or shared cores make the ratio smaller. The table of CPU time shows what a run costs.",
)
