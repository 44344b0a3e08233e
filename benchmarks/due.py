"""Many tenants get work at the same moment: how ours and plain Celery are prepared for it, and one round of it."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

from celery import Task

from benchmarks import plain
from benchmarks.cpu import Cpu
from benchmarks.marks import Marks
from benchmarks.report import Cell, Table
from benchmarks.rounds import median_ratio
from benchmarks.stage import wait_until
from benchmarks.waiting import PIPELINE, let_wait, record_each
from taskbridge.gate import State
from taskbridge.process.runtime import Runtime

__all__ = ["Drained", "Ready", "costs", "drain", "let_go", "park", "publish", "speed_ratio", "speeds", "wait"]

HEAD_START_MS: Final = 500
LOOK_AROUND: Final = 0.3
"""Seconds before the tenants of ours are due, for reading the CPU time of all processes."""
PARKED: Final = "bench.parked"

Ready = Callable[[list[str]], Callable[[], float]]
"""Gives so many tenants work and returns what lets it begin; that returns when it began, as Unix time."""


class Drained(NamedTuple):
    """One round: seconds until the last handler was called, and seconds of CPU time by group of processes."""

    seconds: float
    cpu: dict[str, float]


def drain(runtime: Runtime, file: Path, ready: Ready, cpu: Cpu, tenants: int, *, pipeline: str = PIPELINE) -> Drained:
    """Measure one round, with tenants that nobody knows yet."""
    prefix, marks = secrets.token_hex(4), Marks(file)
    first = marks.count()
    go = ready([f"{prefix}-{at}" for at in range(tenants)])
    before = cpu.seconds()
    began = go()
    wait_until(lambda: marks.count() - first >= tenants, f"{tenants} tenants are handled", 300)
    wait_until(lambda: not _at_work(runtime, pipeline), "the last runs settle", 10)
    used = {name: seconds - before[name] for name, seconds in cpu.seconds().items()}
    return Drained(max(marks.since(first)) - began, used)


def speed_ratio(found: Mapping[str, Sequence[Drained]], ours: str, baseline: str) -> float:
    """Return how many times as fast ours is."""
    return median_ratio([one.seconds for one in found[baseline]], [one.seconds for one in found[ours]])


def speeds(found: Mapping[str, Sequence[Drained]], ours: str, tenants: int, unit: str, title: str, note: str) -> Table:
    """Return how many of so many tenants each subject got through in a second; `unit` is what the column says."""
    rows: list[list[Cell]] = [
        [name, tenants / median(one.seconds for one in rounds), speed_ratio(found, ours, name)]
        for name, rounds in found.items()
    ]
    return Table(title, ("", unit, f"ratio of {ours} to it"), rows, note)


def costs(found: Mapping[str, Sequence[Drained]], tenants: int, unit: str) -> Table:
    """Return the CPU time of each subject by group of processes."""
    groups = list(next(iter(found.values()))[0].cpu)
    rows: list[list[Cell]] = []
    for name, rounds in found.items():
        used = [median(one.cpu[group] for one in rounds) / tenants * 1000 for group in groups]
        rows.append([name, *used, sum(used)])
    return Table("CPU time", (unit, *groups, "all"), rows)


def _at_work(runtime: Runtime, pipeline: str) -> bool:
    runners = runtime.gate.look(pipeline, runtime.gate.active(pipeline))
    return any(runner.state in (State.QUEUED, State.RUNNING) for runner in runners)


def wait(runtime: Runtime, names: list[str]) -> Callable[[], float]:
    """Let tenants of ours wait for the delay of their criterion; the worker's ticker begins.

    Raises:
        TimeoutError: from what is returned, when they were due before it was called.
    """
    due = round(time.time() * 1000) + HEAD_START_MS + len(names) * 2 // 3
    let_wait(runtime, dict.fromkeys(names, due))
    record_each(runtime, names)
    time.sleep(max(0.0, due / 1000 - time.time() - LOOK_AROUND))

    def go() -> float:
        left = due / 1000 - time.time()
        if left < 0:
            raise TimeoutError(f"{len(names)} tenants took {-left:.1f} s too long to set up")
        time.sleep(left)
        return due / 1000

    return go


def park(runtime: Runtime, task: Task[..., None], names: list[str]) -> Callable[[], float]:
    """Publish the messages to a queue that nobody serves; to begin is to rename it, which is one step."""
    plain.write(runtime.engine, names)
    for name in names:
        task.apply_async((name,), queue=PARKED)
    return partial(let_go, runtime, PARKED, plain.QUEUE)


def let_go(runtime: Runtime, parked: str, queue: str) -> float:
    """Put what lies in `parked` into a queue that is empty; return when."""
    began = time.time()
    runtime.redis.rename(parked, queue)
    return began


def publish(runtime: Runtime, task: Task[..., None], names: list[str]) -> Callable[[], float]:
    """Publish nothing yet; to begin is to publish the messages one by one."""
    plain.write(runtime.engine, names)

    def go() -> float:
        began = time.time()
        for name in names:
            task.delay(name)
        return began

    return go
