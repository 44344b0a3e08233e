"""Loads put together on paper from what their units cost, and what servers and workers carry of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Final, NamedTuple

from benchmarks.report import Table

__all__ = [
    "ABSORBED",
    "BURST",
    "END",
    "FIRST",
    "IDLE",
    "MESSAGE",
    "ONE",
    "PER_TRANSACTION",
    "RECORD",
    "SET",
    "TASK",
    "WHO",
    "WRITE",
    "WRITES",
    "Cost",
    "Load",
    "carried",
    "counted",
    "loads_of",
    "medians",
    "minus",
    "plus",
    "scaled",
    "to_fill_redis",
    "workers",
]

Cost = Mapping[str, float]
"""Microseconds of CPU time by who spent them."""

WHO: Final = ("Redis", "Postgres", "worker main", "worker pool", "producer")
BURST: Final = 50
PER_TRANSACTION: Final = 1_000

# The units.
SET: Final = "bare SET, to compare"
MESSAGE: Final = "Celery message, to compare"
TASK: Final = "Celery task that does nothing, to compare"
ABSORBED: Final = "event that is absorbed"
FIRST: Final = "event that starts a run"
WRITE: Final = "record written, in a transaction of its own"
WRITES: Final = f"record written, {PER_TRANSACTION:,} in a transaction"
ONE: Final = "run, 1 record"
END: Final = "end of a lease"
RECORD: Final = "record in a run"
IDLE: Final = "idle worker, per second"


class Load(NamedTuple):
    """A piece of work: its events, runs and records, what it costs, and how that was put together."""

    name: str
    events: int
    runs: int
    records: int
    cost: Cost
    formula: str


def loads_of(units: Mapping[str, Cost], records: int) -> list[Load]:
    """Return lone events, bursts, and imports of `records` records, under the default policy."""
    each, together, run = units[WRITE], units[WRITES], units[ONE]
    first, absorbed, end, record = units[FIRST], units[ABSORBED], units[END], units[RECORD]
    events = max(1, records // PER_TRANSACTION)
    return [
        Load(
            "lone events",
            1,
            1,
            1,
            plus(each, first, run, end),
            "a write, an event that starts a run, the run, the end of its lease",
        ),
        Load(
            f"bursts of {BURST}",
            BURST,
            2,
            BURST,
            plus(
                scaled(each, BURST),
                first,
                scaled(absorbed, BURST - 1),
                scaled(run, 2),
                scaled(record, BURST - 2),
                end,
            ),
            f"{BURST} writes, an event that starts a run, {BURST - 1} that are absorbed within a tick, a run with one "
            f"record, one by its deadline with {BURST - 1}, the end of the lease",
        ),
        Load(
            f"imports of {records:,}",
            events,
            1,
            records,
            plus(
                scaled(together, records),
                first,
                scaled(absorbed, events - 1),
                run,
                scaled(record, records - 1),
                end,
            ),
            f"{records:,} writes and an event per {PER_TRANSACTION:,} of them, a run with all records, the end of the "
            "lease",
        ),
    ]


def carried(load: Load, cores: Mapping[str, int]) -> Table:
    """Return what Redis, Postgres and the workers carry of one load, and which of them is full first."""
    cost = {**load.cost, "workers": workers(load.cost)}
    most = {who: count * 1e6 / cost[who] for who, count in cores.items() if cost[who]}
    first = min(most, key=most.__getitem__, default=None)
    return Table(
        f"What each carries: {load.name}",
        ("", "cores", "µs for one", "events/s", "runs/s", "records/s", "full"),
        [
            (
                who,
                count,
                cost[who],
                *(_times(most.get(who), many) for many in (load.events, load.runs, load.records)),
                "first" if who == first else "later",
            )
            for who, count in cores.items()
        ],
        f"One is {load.formula}. Carried per second: cores x 1,000,000 / µs for one, x events, runs or records of one. "
        "At these rates a server is busy all the time: plan for half.",
    )


def to_fill_redis(loads: Sequence[Load]) -> Table:
    """Return what else is busy when Redis is full."""
    return Table(
        "Cores beside one full core of Redis",
        ("", *(who for who in WHO if who != "Redis")),
        [
            (load.name, *(load.cost[who] / load.cost["Redis"] for who in WHO if who != "Redis"))
            for load in loads
            if load.cost["Redis"]
        ],
        "How many cores of each are busy when Redis uses all of one: µs of each / µs of Redis. A worker has one main "
        "process, which uses one core at the most, so there must be as many workers as it says there, rounded up.",
    )


def _times(value: float | None, many: int) -> float | None:
    return None if value is None else value * many


def workers(cost: Cost) -> float:
    """Return the cost of workers, main processes and pools."""
    return cost["worker main"] + cost["worker pool"]


def medians(costs: Sequence[Cost]) -> Cost:
    """Return the median of each."""
    return {who: median(cost[who] for cost in costs) for who in WHO}


def scaled(cost: Cost, times: float) -> Cost:
    """Return the cost of `times` as much."""
    return {who: cost[who] * times for who in WHO}


def plus(*costs: Cost) -> Cost:
    """Return the sum."""
    return {who: sum(cost[who] for cost in costs) for who in WHO}


def minus(cost: Cost, other: Cost) -> Cost:
    """Return the difference, at least 0."""
    return {who: max(0.0, cost[who] - other[who]) for who in WHO}


def counted(records: int) -> str:
    """Return "1 record", "50 records"."""
    return f"{records:,} record{'s' if records > 1 else ''}"
