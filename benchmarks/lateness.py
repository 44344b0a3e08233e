"""How late runs are published when many tenants wait for their delay, and what waiting costs Redis.

A worker's ticker fires the deadlines. The worker serves no queue here, so that what is measured is the ticker and not
how many runs a machine gets done; the time at which a run was published is in its token. The baseline is the same
worker with nobody waiting: the Redis commands of both are counted over the same span.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final

from benchmarks.benchmark import Benchmark, Option
from benchmarks.queued import run_in
from benchmarks.report import Headline, Report, Table, Target
from benchmarks.rounds import summary
from benchmarks.stage import stage, wait_until, worker
from taskbridge.declaring.criteria import Criterion
from taskbridge.declaring.policy import DelaySinceLastRun
from taskbridge.gate import Queue, Reminder
from taskbridge.process.runtime import Runtime

__all__ = ["HEAD_START_MS", "IDLE_SECONDS", "LATENESS", "PIPELINE", "POLICY", "let_wait", "let_wait_evenly"]

PIPELINE: Final = "bench-alerts"
POLICY: Final = DelaySinceLastRun((Criterion("$.level", "ERROR", "$.service", 3600),))

IDLE_SECONDS: Final = 3.0
HEAD_START_MS: Final = 4_000
CHUNK: Final = 500


def _measure(tenants: int, seconds: float) -> Report:
    """Let `tenants` wait, due evenly over `seconds`."""
    with (
        stage() as (runtime, directory),
        # It serves no queue, so that the runs stay where this process finds them.
        worker(runtime, directory, "-P", "solo", "-Q", "taskbridge.nobody"),
    ):
        wait_until(lambda: runtime.redis.exists(runtime.keys.tailing(PIPELINE)), "the worker's ticker starts", 60)
        idle = _commands_per_second(runtime)
        due = let_wait_evenly(runtime, tenants, seconds)
        waiting = _commands_per_second(runtime)
        late = summary(_lateness(runtime, due, seconds))
    return Report(
        {"tenants": tenants, "seconds": seconds},
        [
            Table("Lateness of due runs", ("", "median ms", "p99 ms", "longest ms"), [(f"{tenants:,} tenants", *late)]),
            Table(
                "Redis commands per second",
                ("", "commands/s", "ratio"),
                [("nobody waits", idle, 1), (f"{tenants:,} tenants wait", waiting, waiting / idle)],
            ),
        ],
        [Target("p99 of lateness, ms", late.p99, 100)],
        headlines=[Headline(f"Redis commands/s while {tenants:,} tenants wait", waiting, "nobody waits", idle)],
    )


def let_wait_evenly(runtime: Runtime, tenants: int, seconds: float) -> dict[str, int]:
    """Make tenants wait, due evenly over `seconds`; return when each is due, in milliseconds of Redis's clock."""
    now, _ = runtime.redis.time()
    first = int(now) * 1000 + 1000 + HEAD_START_MS + round(IDLE_SECONDS * 1000)
    due = {f"tenant-{at}": first + round(at * seconds * 1000 / tenants) for at in range(tenants)}
    let_wait(runtime, due)
    return due


def let_wait(runtime: Runtime, due: Mapping[str, int]) -> None:
    """Make tenants of `PIPELINE` wait until they are due, each in milliseconds of Redis's clock."""
    spacing, names = POLICY.spacing, list(due)
    for start in range(0, len(names), CHUNK):
        chunk = names[start : start + CHUNK]
        runtime.gate.remind(PIPELINE, [Reminder(name, spacing.delay, due[name] - spacing.delay) for name in chunk])


def _commands_per_second(runtime: Runtime) -> float:
    before: Any = runtime.redis.info("stats")
    time.sleep(IDLE_SECONDS)
    after: Any = runtime.redis.info("stats")
    counted: int = after["total_commands_processed"] - before["total_commands_processed"]
    return counted / IDLE_SECONDS


def _lateness(runtime: Runtime, due: dict[str, int], seconds: float) -> list[float]:
    """Take the run messages as they come and compare the time in their tokens with when they were due."""
    late: list[float] = []
    deadline = time.monotonic() + HEAD_START_MS / 1000 + seconds + 60
    while len(late) < len(due):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{len(due) - len(late)} of {len(due)} runs were not published")
        texts: Any = runtime.redis.rpop(Queue.NEXT.value, 1000)
        for text in texts or ():
            tenant, token = run_in(text)
            late.append(int(token[:16]) / 1000 - due[tenant])
        if not texts:
            time.sleep(0.05)
    return late


LATENESS: Final = Benchmark(
    "lateness",
    "How late due runs are published.",
    "Measure how late runs are published that waited for the delay of their criterion, and what waiting costs Redis. "
    "The baseline for the cost is the same worker while nobody waits.",
    _measure,
    (
        Option("tenants", 10_000, 2, 100_000, "Tenants that wait."),
        Option("seconds", 20.0, 1, 600, "Span over which they come due, evenly."),
    ),
    {"tenants": 50, "seconds": 1.0},
)
