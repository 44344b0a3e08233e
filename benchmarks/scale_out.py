"""How throughput grows with the number of workers, beside plain Celery.

Each worker has one process, whose handler waits some milliseconds as for a service that it calls: so the machine's CPU
is not what ends the growth. The tenants get their work at one moment, as in `drain`.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path
from statistics import median
from typing import Final

from benchmarks import plain
from benchmarks.benchmark import Benchmark, Option
from benchmarks.cpu import Cpu
from benchmarks.due import Ready, drain, park, wait
from benchmarks.lateness import PIPELINE
from benchmarks.marks import MARKS
from benchmarks.report import Plot, Report, Table, Target
from benchmarks.rounds import interleaved
from benchmarks.stage import stage, wait_until, worker
from taskbridge.process.runtime import Runtime

__all__ = ["SCALE_OUT"]

OURS: Final = "TaskBridge"
READ: Final = "plain Celery, reads"
FINISH: Final = "plain Celery, reads and marks as done"
WARM: Final = 20


def _measure(runs: int, workers: int, milliseconds: float, rounds: int) -> Report:
    """Measure with 1, 2, 4, ... workers of each kind, `runs` for each of them."""
    counts = [2**at for at in range(workers.bit_length()) if 2**at < workers] + [workers]
    found: dict[str, list[tuple[int, float]]] = {OURS: [], READ: [], FINISH: []}
    with stage() as (runtime, directory), ExitStack() as stack:
        plain.prepare(runtime.engine)
        _, tasks = plain.make_app(runtime.settings.redis_url)
        subjects: dict[str, Ready] = {
            OURS: partial(wait, runtime),
            READ: partial(park, runtime, tasks["read"]),
            FINISH: partial(park, runtime, tasks["finish"]),
        }
        marks, started = directory / "marks", 0
        for count in counts:
            for _ in range(started, count):
                for app in ("taskbridge", plain.__name__):
                    stack.enter_context(_worker(runtime, directory, app, marks, milliseconds))
            started = count
            for name, speeds in _speeds(runtime, marks, subjects, runs * count, rounds).items():
                found[name].append((count, median(speeds)))
    growth = {name: points[-1][1] / points[0][1] for name, points in found.items()}
    return Report(
        {"runs": runs, "workers": workers, "milliseconds": milliseconds, "rounds": rounds},
        [
            Table(
                "Runs per second, by workers",
                ("", *map(str, counts), f"growth from 1 to {workers}"),
                [(name, *(speed for _, speed in points), growth[name]) for name, points in found.items()],
                f"One process for each worker; the handler waits {milliseconds:g} ms.",
            )
        ],
        [
            Target(f"growth, ratio to: {name}", growth[OURS] / growth[name], 0.95, at_least=True)
            for name in (READ, FINISH)
        ],
        [Plot("Throughput by number of workers", "workers", "runs/s", found)],
    )


def _worker(
    runtime: Runtime, directory: Path, app: str, marks: Path, milliseconds: float
) -> AbstractContextManager[int]:
    environment = {MARKS: str(marks), "TASKBRIDGE_BENCH_SECONDS_PER_RECORD": str(milliseconds / 1000)}
    return worker(runtime, directory, "--concurrency", "1", app=app, **environment)


def _speeds(
    runtime: Runtime, marks: Path, subjects: dict[str, Ready], runs: int, rounds: int
) -> dict[str, list[float]]:
    """Return the runs per second of each round."""
    wait_until(lambda: runtime.redis.exists(runtime.keys.tailing(PIPELINE)), "the worker's ticker starts", 60)
    cpu = Cpu(runtime, {})
    for ready in subjects.values():
        drain(runtime, marks, ready, cpu, min(WARM, runs))
    measured = {name: partial(drain, runtime, marks, ready, cpu, runs) for name, ready in subjects.items()}
    return {name: [runs / one.seconds for one in found] for name, found in interleaved(measured, rounds).items()}


SCALE_OUT: Final = Benchmark(
    "scale-out",
    "How throughput grows with workers.",
    "Measure runs per second with 1, 2, 4 and so on workers of one process each, whose handler waits some milliseconds "
    "as for a service that it calls. The baseline is plain Celery with as many workers.",
    _measure,
    (
        Option("runs", 150, 1, 100_000, "Runs in a round, for each worker."),
        Option("workers", 4, 2, 64, "Most workers of each kind."),
        Option("milliseconds", 10.0, 0, 10_000, "How long the handler waits."),
        Option("rounds", 3, 1, 100, "Rounds."),
    ),
    {"runs": 10, "workers": 2, "milliseconds": 1.0, "rounds": 1},
)
