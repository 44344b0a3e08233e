"""What an event costs the producer: an absorbed one, a first one, and many at once.

The baselines are what it would call instead: `delay` of a plain Celery task, and the least that says anything to Redis,
a SET with an expiry. No worker runs. Each kind is measured in blocks, alternating with the others.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from typing import Any, Final

from benchmarks import plain
from benchmarks.report import Benchmark, Cell, Option, Report, Table, Target
from benchmarks.rounds import interleaved, median_ratio
from benchmarks.stage import stage
from taskbridge.integration.tasks import NOTIFY_TASK
from taskbridge.process.runtime import Runtime
from taskbridge.producer.notify import notify_many

__all__ = ["NOTIFY"]

ABSORBED: Final = "notify_event.delay, absorbed"
FIRST: Final = "notify_event.delay, first event"
DELAY: Final = "`.delay()` of a plain Celery task"
SET: Final = "SET of redis-py"

MANY: Final = "notify_many, absorbed, ten events a tenant"
MANY_TENANTS: Final = "notify_many, absorbed, one event a tenant"
MANY_FIRST: Final = "notify_many, first events"
PIPELINED: Final = "SET of redis-py, pipelined"

LEASE_MS: Final = 1200


def _measure(calls: int, many: int, rounds: int) -> Report:
    """Measure blocks of `calls`, and of `many` events at once."""
    with stage() as (runtime, _):
        tenants = [f"tenant-{at}" for at in range(max(calls, many))]
        _, tasks = plain.make_app(runtime.settings.redis_url)
        each, at_once = tenants[:calls], tenants[:many]
        notify, delay = runtime.app.tasks[NOTIFY_TASK].delay, tasks["read"].delay
        one_by_one = {
            ABSORBED: partial(_block, runtime, notify, each, known=True),
            FIRST: partial(_block, runtime, notify, each, known=False),
            DELAY: partial(_block, runtime, delay, each, known=False),
            SET: partial(
                _block, runtime, lambda tenant: runtime.redis.set(tenant, "1", px=LEASE_MS), each, known=False
            ),
        }
        together = {
            MANY: partial(_together, runtime, (at_once[: max(1, many // 10)] * 10)[:many], known=True),
            MANY_TENANTS: partial(_together, runtime, at_once, known=True),
            MANY_FIRST: partial(_together, runtime, at_once, known=False),
            PIPELINED: partial(_pipelined, runtime, at_once),
        }
        interleaved(one_by_one | together, 1)
        found = interleaved(one_by_one | together, rounds)
    return Report(
        {"calls": calls, "many": many, "rounds": rounds},
        [_one_by_one({name: found[name] for name in one_by_one}), _at_once({name: found[name] for name in together})],
        [
            Target("absorbed, ratio to delay", median_ratio(found[ABSORBED], found[DELAY]), 0.35),
            Target("absorbed, ratio to SET", median_ratio(found[ABSORBED], found[SET]), 1.3),
            Target("first event, ratio to delay", median_ratio(found[FIRST], found[DELAY]), 0.45),
            Target(f"{MANY}, events/s", 1 / median(found[MANY]), 50_000, at_least=True),
        ],
    )


def _prepare(runtime: Runtime, tenants: Sequence[str], known: bool) -> None:
    """Empty Redis; if `known`, each tenant has had its first event."""
    runtime.redis.flushdb()
    if known:
        notify_many(runtime.app, tenants)


def _block(runtime: Runtime, call: Callable[[str], Any], tenants: Sequence[str], known: bool) -> float:
    """Return the median of the seconds that a call took."""
    _prepare(runtime, tenants, known)
    took = []
    for tenant in tenants:
        before = time.perf_counter()
        call(tenant)
        took.append(time.perf_counter() - before)
    return median(took)


def _together(runtime: Runtime, tenants: Sequence[str], known: bool) -> float:
    """Return the seconds for each event of one call with all of them."""
    _prepare(runtime, tenants, known)
    before = time.perf_counter()
    notify_many(runtime.app, tenants)
    return (time.perf_counter() - before) / len(tenants)


def _pipelined(runtime: Runtime, tenants: Sequence[str]) -> float:
    runtime.redis.flushdb()
    before = time.perf_counter()
    with runtime.redis.pipeline(transaction=False) as pipe:
        for tenant in tenants:
            pipe.set(tenant, "1", px=LEASE_MS)
        pipe.execute()
    return (time.perf_counter() - before) / len(tenants)


def _one_by_one(found: dict[str, list[float]]) -> Table:
    rows: list[list[Cell]] = [
        [name, median(took) * 1e6, median_ratio(took, found[DELAY]), median_ratio(took, found[SET])]
        for name, took in found.items()
    ]
    return Table("One call", ("", "median µs", "ratio to delay", "ratio to SET"), rows)


def _at_once(found: dict[str, list[float]]) -> Table:
    rows: list[list[Cell]] = [
        [name, 1 / median(took), median_ratio(found[PIPELINED], took)] for name, took in found.items()
    ]
    return Table("Many events in one call", ("", "events/s", "ratio to pipelined SET"), rows)


NOTIFY: Final = Benchmark(
    "notify",
    "An event that is absorbed by a burst costs one short Redis command.",
    "The time of `notify_event.delay` in a burst, divided by that of a plain Celery task's `delay`.",
    "Measures how long a producer takes to send an event: one that a burst absorbs, one that starts a run, and many "
    "in one call. The baselines are `delay` of a plain Celery task, and a SET with an expiry. For many events, the "
    "SETs are pipelined.",
    _measure,
    (
        Option("calls", 1_000, 1, 100_000, "Calls of each kind in a round, one by one."),
        Option("many", 10_000, 1, 1_000_000, "Events in one call of notify_many."),
        Option("rounds", 10, 1, 1_000, "Rounds."),
    ),
    {"calls": 20, "many": 50, "rounds": 2},
)
