"""What traces cost a producer: without OpenTelemetry, with its API alone, with an SDK that samples nothing, or all.

Each way is a process of its own, and the four take turns. No worker runs, and the in-memory exporter sends nothing.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from statistics import median
from typing import Any, Final

from benchmarks.benchmark import Benchmark, Option
from benchmarks.report import Cell, Headline, Report, Table, Target
from benchmarks.rounds import interleaved, median_ratio
from benchmarks.stage import ROOT, stage
from benchmarks.traces_producer import WAYS
from taskbridge.process.runtime import Runtime

__all__ = ["TRACES"]

NAMES: Final = dict(
    zip(
        WAYS,
        ("OpenTelemetry not installed", "its API alone", "an SDK that samples nothing", "an SDK that samples all"),
        strict=True,
    )
)
CALLS: Final = {"absorbed": "notify_event.delay, absorbed", "record": "record_invoice"}
MOST: Final = 1.05


class _Child:
    """A producer that makes spans in one way."""

    def __init__(self, runtime: Runtime, process: subprocess.Popen[str]) -> None:
        self._runtime = runtime
        self._process: Any = process

    def block(self, what: str, calls: int) -> float:
        """Let it do a block of calls; return the median seconds of a call."""
        self._runtime.redis.flushdb()
        self._process.stdin.write(json.dumps([what, calls]) + "\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())


@contextmanager
def _child(runtime: Runtime, way: str) -> Iterator[_Child]:
    environment = {
        **os.environ,
        **runtime.settings.as_environment(),
        "PYTHONPATH": str(ROOT),
        "TASKBRIDGE_PIPELINES": "",
    }
    command = [sys.executable, "-m", "benchmarks.traces_producer", way]
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield _Child(runtime, process)


def _measure(events: int, records: int, rounds: int) -> Report:
    """Measure blocks of so many calls, one way after the other."""
    calls = {"absorbed": events, "record": records}
    with stage() as (runtime, _), ExitStack() as entered:
        children = {way: entered.enter_context(_child(runtime, way)) for way in WAYS}
        subjects = {
            f"{what} {way}": partial(child.block, what, count)
            for what, count in calls.items()
            for way, child in children.items()
        }
        interleaved(subjects, 1)
        found = interleaved(subjects, rounds)
    tables = [_table(what, {way: found[f"{what} {way}"] for way in WAYS}) for what in calls]
    ratios = {name: median_ratio(took, found[f"{name.split()[0]} none"]) for name, took in found.items()}
    absorbed, without = median(found["absorbed api"]), median(found["absorbed none"])
    return Report(
        {"events": events, "records": records, "rounds": rounds},
        tables,
        [
            Target(f"{CALLS[what]}, the API alone, ratio to not installed", ratios[f"{what} api"], MOST)
            for what in calls
        ],
        headlines=[
            Headline(
                "absorbed event with OpenTelemetry's API, µs",
                absorbed * 1e6,
                "not installed",
                without * 1e6,
                ratios["absorbed api"],
            )
        ],
    )


def _table(what: str, found: dict[str, list[float]]) -> Table:
    rows: list[list[Cell]] = [
        [NAMES[way], median(took) * 1e6, median_ratio(took, found["none"])] for way, took in found.items()
    ]
    return Table(CALLS[what], ("", "median µs", "ratio to not installed"), rows)


TRACES: Final = Benchmark(
    "traces",
    "What traces cost a producer.",
    "Measure absorbed events and records without OpenTelemetry, with its API alone, and with an SDK that samples "
    "nothing or all: then each event is a span, kept in memory. The target is at most 5 % where no SDK is set up.",
    _measure,
    (
        Option("events", 2_000, 1, 1_000_000, "Events in a round, of each way."),
        Option("records", 200, 1, 1_000_000, "Records in a round, of each way."),
        Option("rounds", 20, 1, 1_000, "Rounds."),
    ),
    {"events": 20, "records": 5, "rounds": 2},
)
