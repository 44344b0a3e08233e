"""What a round of the tail and of the base costs, and how that grows with the records and tenants that there are.

Rounds are made in this process, reminders included, while no worker runs. All that is there is handled before each
measurement. The sweeps beside an open transaction are read and not handed over.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from statistics import median
from typing import Any, Final, NamedTuple

from taskbridge.bench.benchmark import Benchmark, Option
from taskbridge.bench.report import Cell, Plot, Report, Table, Target
from taskbridge.bench.rounds import decades, slope
from taskbridge.bench.stage import stage
from taskbridge.pipeline import Pipeline, Pipelines
from taskbridge.policy import LatencyNeutral
from taskbridge.runtime import Runtime
from taskbridge.store.engine import patiently
from taskbridge.tail import base_round, tail_round

__all__ = ["TAIL"]

PIPELINE: Final = "bench-tail"
SOURCE: Final = "bench-tail"
PER_TENANT: Final = 10
MANY: Final = 1_000
SAMPLES: Final = 11
SMALLEST: Final = 10_000
READER: Final = "reader"

GROW: Final = """
INSERT INTO taskbridge.records (source, tenant, key, document)
SELECT %(source)s, 'tenant-' || n / %(each)s, n::text, '{}'
FROM generate_series(%(first)s::bigint, %(last)s::bigint - 1) n
"""
NEWS: Final = """
INSERT INTO taskbridge.records (source, tenant, key, document)
SELECT %(source)s, 'tenant-' || n, %(key)s, '{}' FROM generate_series(0, %(tenants)s - 1) n
"""
HANDLED: Final = """
INSERT INTO taskbridge.sync_cursors (pipeline, tenant, snapshot)
SELECT %(pipeline)s, 'tenant-' || n, pg_current_snapshot() FROM generate_series(0, %(tenants)s - 1) n
ON CONFLICT (pipeline, tenant) DO UPDATE SET snapshot = excluded.snapshot, looked = NULL
"""
COMMITS: Final = """
DO $$
BEGIN
    FOR n IN 1 .. {commits} LOOP
        INSERT INTO taskbridge.records (source, tenant, key, document)
            VALUES ('bench-tail', '{tenant}', 'c' || n, '{{}}');
        COMMIT;
    END LOOP;
END
$$
"""


class _Costs(NamedTuple):
    """Of one size, in milliseconds."""

    tail_idle: float
    tail_many: float
    base_idle: float
    base_many: float


class _Rounds:
    """The pipeline of this benchmark on a runtime."""

    def __init__(self, here: Runtime) -> None:
        self.here = here
        here.pipelines = Pipelines()
        here.pipelines.declare(Pipeline(PIPELINE, print, LatencyNeutral(), 500, source=SOURCE))
        self._keys = iter(range(1_000_000))
        self._read = 0

    def execute(self, statement: str, **values: Any) -> None:
        """Execute a statement in a transaction of its own."""
        engine = self.here.engine.execution_options(isolation_level="AUTOCOMMIT")
        with engine.connect() as connection, patiently(connection, None):
            connection.exec_driver_sql(statement, values or None)

    def quiet(self, tenants: int) -> None:
        """Let all that is there be handled, and the rounds know it."""
        self.execute(HANDLED, pipeline=PIPELINE, tenants=tenants)
        self.execute("VACUUM ANALYZE taskbridge.records, taskbridge.sync_cursors, taskbridge.tails")
        tail_round(self.here, PIPELINE)
        base_round(self.here, PIPELINE)
        self.here.redis.flushdb()

    def news(self, tenants: int) -> None:
        """Let so many tenants have one record more each, of one transaction."""
        self.execute(NEWS, source=SOURCE, key=f"new {next(self._keys)}", tenants=tenants)

    def tail(self) -> float:
        """Make a round of the tail; return its milliseconds."""
        started = time.perf_counter()
        tail_round(self.here, PIPELINE)
        return (time.perf_counter() - started) * 1000

    def base(self) -> float:
        """Make a base round; return its milliseconds."""
        started = time.perf_counter()
        base_round(self.here, PIPELINE)
        return (time.perf_counter() - started) * 1000

    def read(self, tenant: str) -> float:
        """Read a batch of a tenant as a run does, and advance past it; return the milliseconds of the reading."""
        self._read += 1
        key = {"pipeline": PIPELINE, "tenant": tenant, "token": f"{self._read:016d}-aaaaaaaaaaaa"}
        cursors = self.here.cursors_of(PIPELINE)
        started = time.perf_counter()
        page = cursors.claim(key, 500, events=1, new_events=1, runs=1)
        spent = (time.perf_counter() - started) * 1000
        while page.moves_cursor:
            with cursors.transaction(key) as transaction:
                transaction.advance(page)
            if page.finished:
                break
            page = cursors.read(key, 500)
        return spent


def _measure(largest: int, commits: int) -> Report:
    """Measure rounds at up to `largest` records, then beside a transaction that is open for so many `commits`."""
    with stage() as (here, _):
        rounds = _Rounds(here)
        sizes = decades(SMALLEST, largest)
        costs = [*_growth(rounds, sizes)]
        beside = _beside_an_open_transaction(rounds, commits)
    names = (
        "tail, nothing new",
        f"tail, {MANY:,} new tenants",
        "base, nothing pending",
        f"base, {MANY:,} pending tenants",
    )
    series = {
        name: [*zip(sizes, found, strict=True)] for name, found in zip(names, zip(*costs, strict=True), strict=True)
    }
    rows: list[list[Cell]] = [
        [f"{size:,}", f"{size // PER_TENANT:,}", *cost] for size, cost in zip(sizes, costs, strict=True)
    ]
    rows.append(["slope", "", *(slope(points) for points in series.values())])
    return Report(
        {"largest": largest, "commits": commits},
        [
            Table(
                "Cost of one round, in ms",
                ("records", "tenants", *names),
                rows,
                f"Medians of {SAMPLES}, reminders and storing included. Slope: the exponent with which the cost grows; "
                "0 is not at all, 1 in proportion.",
            ),
            Table(
                f"Beside a transaction that was open for {commits:,} commits, in ms",
                ("", "before", "beside it", "ratio"),
                beside,
                f"At the largest size; medians of {SAMPLES}. The sweep is the claim and first page of a tenant with "
                "ten new records, which has all of those commits behind it.",
            ),
        ],
        [
            Target("ms of a round of the tail with nothing new", costs[-1].tail_idle, 2.0),
            Target(f"ms of a round of the tail with {MANY:,} new tenants", costs[-1].tail_many, 15.0),
            Target("ratio of a sweep beside an open transaction", float(beside[-1][3] or 0), 1.5),
        ],
        [Plot("Cost of one round", "records in the log", "ms", series, logarithmic=True)],
    )


def _growth(rounds: _Rounds, sizes: list[int]) -> Iterator[_Costs]:
    there = 0
    for size in sizes:
        rounds.execute(GROW, source=SOURCE, each=PER_TENANT, first=there, last=size)
        there = size
        rounds.quiet(size // PER_TENANT)
        yield _costs(rounds, size // PER_TENANT)


def _costs(rounds: _Rounds, tenants: int) -> _Costs:
    many = min(MANY, tenants)
    samples = []
    for _ in range(SAMPLES):
        idle = rounds.tail(), rounds.base()
        rounds.news(many)
        samples.append((idle[0], rounds.tail(), idle[1], rounds.base()))
        rounds.quiet(many)
    return _Costs(*(median(found) for found in zip(*samples, strict=True)))


def _beside_an_open_transaction(rounds: _Rounds, commits: int) -> list[list[Cell]]:
    def measure() -> list[float]:
        found = []
        for _ in range(SAMPLES):
            idle = rounds.tail()
            rounds.news(MANY)
            many = rounds.tail()
            rounds.execute(
                "INSERT INTO taskbridge.records (source, tenant, key, document) "
                "SELECT %(source)s, %(tenant)s, %(key)s || n, '{}' FROM generate_series(1, 10) n",
                source=SOURCE,
                tenant=READER,
                key=f"read {time.monotonic_ns()} ",
            )
            found.append((idle, many, rounds.read(READER)))
            rounds.here.redis.flushdb()
        return [median(values) for values in zip(*found, strict=True)]

    before = measure()
    with rounds.here.engine.connect() as other:
        # A transaction has an id from its first change on.
        other.exec_driver_sql(
            "INSERT INTO taskbridge.records (source, tenant, key, document) VALUES ('bench-tail', 'open', '1', '{}')"
        )
        rounds.execute(COMMITS.format(commits=commits, tenant=READER))
        rounds.read(READER)
        rounds.tail()
        beside = measure()
        other.rollback()
    names = ("tail, nothing new", f"tail, {MANY:,} new tenants", "sweep of ten records")
    return [[name, one, two, two / one] for name, one, two in zip(names, before, beside, strict=True)]


TAIL: Final = Benchmark(
    "tail",
    "What a round of the tail and of the base costs, and how that grows.",
    "Measure rounds of the tail and base rounds, with nothing to find and with 1,000 tenants, as the log grows; then "
    "the same beside a transaction that stays open. Targets: 2 ms with nothing new, 15 ms with 1,000 new tenants; a "
    "sweep beside the open transaction 1.5 times its usual cost.",
    _measure,
    (
        Option("largest", 1_000_000, 10_000, 100_000_000, "Records in the log at the end, ten of each tenant."),
        Option("commits", 100_000, 100, 10_000_000, "Commits while another transaction is open."),
    ),
    {"largest": 10_000, "commits": 100},
    page={"largest": 10_000_000},
)
