"""What the run history costs a run.

The runs are the runner's own, in this process, with a handler that does nothing: each tenant has one record and one
event. They begin alone, as where the system is idle, and 16 together, as where many wait.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import count
from statistics import median
from typing import Any, Final

from benchmarks.benchmark import Benchmark, Option
from benchmarks.report import Cell, Report, Table, Target
from benchmarks.rounds import interleaved, median_ratio
from benchmarks.stage import stage
from taskbridge.common.run_key import RunKey
from taskbridge.declaring.batch import Batch
from taskbridge.declaring.pipeline import Pipeline, Pipelines
from taskbridge.declaring.policy import LatencyNeutral
from taskbridge.gate import Queue
from taskbridge.integration.app import make_app
from taskbridge.process.runtime import Runtime, runtime_of
from taskbridge.running import slot
from taskbridge.store import keep_runs

__all__ = ["HISTORY"]

PIPELINE: Final = "bench-history"
PAGE: Final = 500
DAYS: Final = 7
WHY: Final = (
    "The row is one INSERT more, into the day's partition with its key. It costs as much whatever the run does, and "
    "this one has a single record and a handler that does nothing"
)
MOST: Final = 1.05
WITH, WITHOUT = "with a history", "without"
WAYS: Final = {"alone": 1, "16 together": 16}
FILL: Final = (
    "INSERT INTO taskbridge.records (source, tenant, key, document) "
    "SELECT %s, name, name, '{}' FROM unnest(%s::text[]) name"
)
NUMBERS: Final = count()


def _nothing(batch: Batch) -> None:
    """Take the records."""


def _measure(tenants: int, rounds: int) -> Report:
    """Do a run of each of `tenants`, in each way, with and without a history; `rounds` times."""
    pipelines = Pipelines()
    pipelines.declare(Pipeline(PIPELINE, _nothing, LatencyNeutral(lease=0, tick=0.001), PAGE))
    with stage(history_days=DAYS) as (noting, _):
        silent = runtime_of(make_app(replace(noting.settings, history_days=0)).app)
        for runtime in (noting, silent):
            runtime.pipelines, runtime.worker = pipelines, "bench@localhost"
        keep_runs(noting.engine, DAYS)
        subjects: dict[str, Callable[[], float]] = {
            f"{way} {name}": partial(_runs, runtime, tenants, size)
            for way, size in WAYS.items()
            for name, runtime in ((WITH, noting), (WITHOUT, silent))
        }
        interleaved(subjects, 1)
        found = interleaved(subjects, rounds)
        with noting.engine.connect() as connection:
            written = connection.exec_driver_sql("SELECT count(*) FROM taskbridge.runs").scalar_one()
        silent.close()
    ratios = {way: median_ratio(found[f"{way} {WITH}"], found[f"{way} {WITHOUT}"]) for way in WAYS}
    rows: list[list[Cell]] = [
        [way, median(found[f"{way} {WITH}"]) * 1e3, median(found[f"{way} {WITHOUT}"]) * 1e3, ratio]
        for way, ratio in ratios.items()
    ]
    return Report(
        {"tenants": tenants, "rounds": rounds},
        [
            Table(
                "ms per run, from begin to settle",
                ("runs begin", WITH, WITHOUT, "ratio"),
                rows,
                f"A run reads one record and advances its cursor durably. {written:,} rows of history were written.",
            )
        ],
        [
            Target(f"runs that begin {way}: with a history, ratio to without", ratios[way], MOST, why=WHY)
            for way in WAYS
        ],
    )


def _runs(runtime: Runtime, tenants: int, size: int) -> float:
    """Do a run of each of `tenants` new tenants, so many at a time; return the seconds of one."""
    names = [f"tenant-{next(NUMBERS)}" for _ in range(tenants)]
    with runtime.engine.begin() as connection:
        connection.exec_driver_sql(FILL, (PIPELINE, names))
    spacing = runtime.pipelines[PIPELINE].policy.spacing
    runtime.gate.notify_many([(PIPELINE, name, spacing) for name in names])
    stands: Any = runtime.gate.look(PIPELINE, names)
    keys = [RunKey(PIPELINE, name, one.token or "") for name, one in zip(names, stands, strict=True)]
    runtime.redis.delete(*Queue)
    started = time.perf_counter()
    for first in range(0, len(keys), size):
        for error in slot.run_together(runtime, keys[first : first + size]):
            if error is not None:
                raise error
    return (time.perf_counter() - started) / tenants


HISTORY: Final = Benchmark(
    "history",
    "What the run history costs a run.",
    "Measure runs that begin alone and 16 together, with the run history and without it. The target is at most 5 %.",
    _measure,
    (
        Option("tenants", 160, 1, 100_000, "Runs in a round, of each way."),
        Option("rounds", 60, 1, 1_000, "Rounds."),
    ),
    {"tenants": 20, "rounds": 2},
)
