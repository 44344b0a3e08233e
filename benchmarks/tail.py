"""What a round of the tail and of the base costs, and how that grows with the records and tenants that there are.

Rounds are made in this process, reminders included, while no worker runs. All that is there is handled before each
measurement. The sweeps beside an open transaction are read and not delivered. Then a worker runs: idle, and over a
Redis that is flushed. It is stopped for as long as it takes to write the records, to let the tail see them, and to
flush Redis: so all of them are pending, and nothing but a base round finds them.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any, Final, NamedTuple

from benchmarks.benchmark import Benchmark, Option
from benchmarks.cpu import Cpu
from benchmarks.marks import MARKS, Marks
from benchmarks.report import Cell, Plot, Report, Table, Target
from benchmarks.rounds import decades, slope
from benchmarks.stage import stage, wait_until, worker
from taskbridge.common.run_key import RunKey
from taskbridge.declaring.pipeline import Pipeline, Pipelines
from taskbridge.declaring.policy import LatencyNeutral
from taskbridge.observing.metrics import Metrics
from taskbridge.process.runtime import Runtime
from taskbridge.running.tail import base_round, tail_round
from taskbridge.store import Claim
from taskbridge.store.db import within

__all__ = ["PIPELINE", "TAIL"]

PIPELINE: Final = "bench-tail"
SOURCE: Final = "bench-tail"
HANDLERS: Final = "benchmarks.tail_handlers"
MANY: Final = 1_000
SAMPLES: Final = 11
LOOKS: Final = 3
SMALLEST: Final = 1_000
READER: Final = "reader"
WHY_MANY: Final = (
    "Redis alone needs half of it, for the runner, the deadline and the turn of each tenant; the query and redis-py "
    "need the rest"
)
STATUS: Final = "from taskbridge.cli.main import main; main()"

GROW: Final = """
INSERT INTO taskbridge.records (source, tenant, key, document)
SELECT %(source)s, 'tenant-' || n / %(each)s, n::text, '{}'
FROM generate_series(%(first)s::bigint * %(each)s, %(last)s::bigint * %(each)s - 1) n
"""
NEWS: Final = """
INSERT INTO taskbridge.records (source, tenant, key, document)
SELECT %(source)s, 'tenant-' || n, %(key)s, '{}' FROM generate_series(0, %(tenants)s - 1) n
"""
HANDLED: Final = """
INSERT INTO taskbridge.sync_cursors (pipeline, tenant, snapshot)
SELECT %(pipeline)s, 'tenant-' || n, pg_current_snapshot() FROM generate_series(%(first)s, %(last)s - 1) n
ON CONFLICT (pipeline, tenant) DO UPDATE SET snapshot = excluded.snapshot, looked = NULL
"""
SEEN: Final = "UPDATE taskbridge.tails SET snapshot = pg_current_snapshot()"
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
    scrape: float
    status: float


class _Rounds:
    """The pipeline of this benchmark on a runtime."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        runtime.pipelines = Pipelines()
        runtime.pipelines.declare(Pipeline(PIPELINE, print, LatencyNeutral(), 500, source=SOURCE))
        self._keys = iter(range(1_000_000))
        self._read = 0
        tail_round(runtime, PIPELINE)
        base_round(runtime, PIPELINE)

    def execute(self, statement: str, **values: Any) -> None:
        """Execute a statement in a transaction of its own."""
        engine = self.runtime.engine.execution_options(isolation_level="AUTOCOMMIT")
        with engine.connect() as connection, within(connection, None):
            connection.exec_driver_sql(statement, values or None)

    def quiet(self, last: int, first: int = 0) -> None:
        """Let all records of tenants from `first` to `last` be handled, and the rounds know it."""
        self.execute(HANDLED, pipeline=PIPELINE, first=first, last=last)
        self.execute("VACUUM ANALYZE taskbridge.records, taskbridge.sync_cursors, taskbridge.tails")
        self.execute(SEEN)
        # The first statements after a VACUUM plan anew.
        tail_round(self.runtime, PIPELINE)
        base_round(self.runtime, PIPELINE)
        self.runtime.redis.flushdb()

    def news(self, tenants: int) -> None:
        """Let so many tenants have one record more each, of one transaction."""
        self.execute(NEWS, source=SOURCE, key=f"new {next(self._keys)}", tenants=tenants)

    def tail(self) -> float:
        """Make a round of the tail; return its milliseconds."""
        started = time.perf_counter()
        tail_round(self.runtime, PIPELINE)
        return (time.perf_counter() - started) * 1000

    def base(self) -> float:
        """Make a base round; return its milliseconds."""
        started = time.perf_counter()
        base_round(self.runtime, PIPELINE)
        return (time.perf_counter() - started) * 1000

    def read(self, tenant: str) -> float:
        """Read a batch of a tenant as a run does, and advance past it; return the milliseconds of the reading."""
        self._read += 1
        key = RunKey(PIPELINE, tenant, f"{self._read:016d}-aaaaaaaaaaaa")
        cursors = self.runtime.cursors_of(PIPELINE)
        started = time.perf_counter()
        page = cursors.claim(Claim(key, 500, events=1, runs=1))
        spent = (time.perf_counter() - started) * 1000
        while page.moves_cursor:
            with cursors.transaction(key) as transaction:
                transaction.advance(page)
            if page.finished:
                break
            page = cursors.read(key, 500)
        return spent


def _measure(tenants: int, each: int, commits: int, seconds: float) -> Report:
    """Measure rounds at up to `tenants` with `each` so many records; then with an open transaction, and a worker."""
    with stage() as (runtime, directory):
        rounds = _Rounds(runtime)
        sizes = decades(SMALLEST, tenants)
        costs = [*_growth(rounds, sizes, each)]
        beside = _beside_an_open_transaction(rounds, commits)
        marks = Marks(directory / "marks")
        rounds.quiet(min(MANY, tenants))
        options = ("--concurrency", "2")
        with worker(runtime, directory, *options, pipelines=HANDLERS, **{MARKS: str(directory / "marks")}) as pid:
            cores = _idle(runtime, pid, seconds)
            repaired = _repaired(rounds, marks, pid, min(MANY, tenants))
    names = (
        "tail, nothing new",
        f"tail, {MANY:,} new tenants",
        "base, nothing pending",
        f"base, {MANY:,} pending tenants",
        "scrape",
        "status",
    )
    series = {
        name: [*zip(sizes, found, strict=True)] for name, found in zip(names, zip(*costs, strict=True), strict=True)
    }
    rows: list[list[Cell]] = [[f"{size:,}", f"{size * each:,}", *cost] for size, cost in zip(sizes, costs, strict=True)]
    rows.append(["slope", "", *(slope(points) for points in series.values())])
    return Report(
        {"tenants": tenants, "each": each, "commits": commits, "seconds": seconds},
        [
            Table(
                "Cost of one round, and of a look, in ms",
                ("tenants", "records", *names),
                rows,
                f"Medians of {SAMPLES}, reminders and storing included; of {LOOKS} for a scrape of the metrics and for "
                "the command `taskbridge status`, its start included. Slope: the exponent with which the cost grows; 0 "
                "is not at all, 1 in proportion.",
            ),
            Table(
                f"Beside a transaction that was open for {commits:,} commits, in ms",
                ("", "before", "beside it", "ratio"),
                beside,
                f"At the largest size; medians of {SAMPLES}. The sweep is the claim and first page of a tenant with "
                "ten new records, which has all of those commits behind it.",
            ),
            Table(
                f"Besides, at {tenants:,} tenants",
                ("", ""),
                [
                    *((f"% of a core of {name}, while nothing is due", share * 100) for name, share in cores.items()),
                    (f"s from the loss of Redis until {min(MANY, tenants):,} pending tenants are handled", repaired),
                ],
            ),
        ],
        [
            Target("ms of a round of the tail with nothing new", costs[-1].tail_idle, 2.0),
            Target(f"ms of a round of the tail with {MANY:,} new tenants", costs[-1].tail_many, 15.0, why=WHY_MANY),
            Target("ratio of a sweep beside an open transaction", float(beside[-1][3] or 0), 1.5),
            Target("% of a core of an idle worker", cores["the worker"] * 100, 2.0),
            Target("s until all goes on after the loss of Redis", repaired, 6.0),
            Target("ms of a scrape", costs[-1].scrape, 200.0),
            Target("ms of the first page of `status`", costs[-1].status, 1_000.0),
        ],
        [Plot("Cost of one round, and of a look", "tenants", "ms", series, logarithmic=True)],
    )


def _growth(rounds: _Rounds, sizes: list[int], each: int) -> Iterator[_Costs]:
    there = 0
    for size in sizes:
        rounds.execute(GROW, source=SOURCE, each=each, first=there, last=size)
        rounds.quiet(size, there)
        there = size
        yield _costs(rounds, size)


def _costs(rounds: _Rounds, tenants: int) -> _Costs:
    many = min(MANY, tenants)
    samples = []
    for _ in range(SAMPLES):
        idle = rounds.tail(), rounds.base()
        rounds.news(many)
        samples.append((idle[0], rounds.tail(), idle[1], rounds.base()))
        rounds.quiet(many)
    # With everything that a process keeps from one scrape to the next.
    metrics = Metrics(rounds.runtime)
    looks = (metrics.text, lambda: _status(rounds.runtime))
    times = [median(_ms(look) for _ in range(LOOKS)) for look in looks]
    return _Costs(*(median(found) for found in zip(*samples, strict=True)), *times)


def _status(runtime: Runtime) -> None:
    command = [sys.executable, "-c", STATUS, "status", "--pipeline", PIPELINE]
    environment = {**os.environ, **runtime.settings.as_environment(), "TASKBRIDGE_PIPELINES": HANDLERS}
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)


def _ms(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return (time.perf_counter() - started) * 1000


def _idle(runtime: Runtime, pid: int, seconds: float) -> dict[str, float]:
    """Return the share of a core of the worker and of both servers while nothing is to be done."""
    cpu = Cpu(runtime, {"worker": [pid]})
    time.sleep(min(2.0, seconds))
    before, started = cpu.seconds(), time.monotonic()
    time.sleep(seconds)
    used = {name: after - before[name] for name, after in cpu.seconds().items()}
    passed = time.monotonic() - started
    worker_used = used["worker main"] + used["worker children"]
    return {"the worker": worker_used / passed, "Redis": used["redis"] / passed, "Postgres": used["postgres"] / passed}


def _repaired(rounds: _Rounds, marks: Marks, pid: int, tenants: int) -> float:
    """Return the seconds from the loss of Redis until the last of so many pending tenants is handled."""
    before = marks.count()
    os.kill(pid, signal.SIGSTOP)
    try:
        rounds.news(tenants)
        rounds.tail()
        rounds.runtime.redis.flushdb()
        lost = time.time()
    finally:
        os.kill(pid, signal.SIGCONT)
    wait_until(lambda: marks.count() >= before + tenants, "all pending tenants are handled", 120)
    return max(marks.since(before)) - lost


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
            rounds.runtime.redis.flushdb()
        return [median(values) for values in zip(*found, strict=True)]

    before = measure()
    with rounds.runtime.engine.connect() as other:
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
    "Measure rounds of the tail and base rounds, with nothing to find and with 1,000 tenants, a scrape of the metrics "
    "and the first page of `status`, as tenants grow; then the same beside a transaction that stays open; then the CPU "
    "of an idle worker, and how soon all goes on after Redis lost its data while 1,000 tenants are pending. Targets: 2 "
    "ms with nothing new, 15 ms with 1,000 new tenants; a sweep beside the open transaction 1.5 times its usual cost; "
    "2 % of a core; 6 s; 200 ms; 1 s.",
    _measure,
    (
        Option("tenants", 100_000, 1_000, 10_000_000, "Tenants at the end."),
        Option("each", 10, 1, 1_000, "Records of each tenant."),
        Option("commits", 100_000, 100, 10_000_000, "Commits while another transaction is open."),
        Option("seconds", 10.0, 1, 600, "For how long the idle worker is measured."),
    ),
    {"tenants": 1_000, "each": 2, "commits": 100, "seconds": 1.0},
    page={"tenants": 1_000_000},
)
