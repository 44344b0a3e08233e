"""How fast one tenant's records are read, delivered and advanced, and how that grows with the table.

The runs are the runner's own, in this process and one after another, with a handler that only looks at each document.
Each subject has one connection, which is open already; each round begins with all records pending.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from statistics import median
from typing import Any, Final, NamedTuple

import psycopg

from benchmarks.report import Benchmark, Cell, Option, Report, Table, Target
from benchmarks.rounds import decades, interleaved, median_ratio, slope
from benchmarks.stage import stage
from taskbridge.declaring.batch import Batch
from taskbridge.declaring.pipeline import Pipeline, Pipelines
from taskbridge.declaring.policy import LatencyNeutral
from taskbridge.gate import Queue, State
from taskbridge.process.runtime import Runtime
from taskbridge.worker import slot

__all__ = ["SWEEP"]

PIPELINE: Final = "bench-sweep"
SOURCE: Final = "invoices"
TENANT: Final = "swept"
GROWN: Final = "grown"
PAGE: Final = 500
ROUNDS: Final = 5
SAMPLES: Final = 21
SMALLEST: Final = 10_000

# The bare select pages by (tenant, id), which needs an index that we do not.
TABLES: Final = """
CREATE INDEX ix_bench_bare ON taskbridge.records (tenant, id);
CREATE TABLE bench_flagged (LIKE taskbridge.records INCLUDING DEFAULTS, done boolean NOT NULL DEFAULT false);
ALTER TABLE bench_flagged ADD PRIMARY KEY (id);
CREATE INDEX ix_bench_flagged ON bench_flagged (tenant, id) WHERE NOT done;
"""
FILL: Final = """
INSERT INTO taskbridge.records (id, source, tenant, key, revision, xid, document, recorded_at, changed_at)
SELECT i.id, 'invoices', %(tenant)s, to_char(n, 'FM0000000000'), i.id, pg_current_xact_id(), %(document)s::jsonb,
       now(), now()
FROM generate_series(%(first)s::bigint, %(last)s::bigint) n,
     LATERAL (SELECT taskbridge.next_id('invoices') AS id WHERE n >= 0) i
"""
FILLED_AT_ONCE: Final = 1_000_000
"""Rows of one statement, so that it ends within the time that a statement may take."""
BARE: Final = """
SELECT id, key, revision, document FROM taskbridge.records WHERE tenant = %s AND id > %s ORDER BY id LIMIT %s
"""
FLAGGED: Final = """
SELECT id, key, revision, document FROM bench_flagged WHERE tenant = %s AND NOT done
ORDER BY id LIMIT %s FOR UPDATE SKIP LOCKED
"""
DONE: Final = "UPDATE bench_flagged SET done = true WHERE id = ANY(%s)"


class _Swept(NamedTuple):
    """Of one run or several: seconds, and how many records the handler was given."""

    seconds: float
    records: int


class _Sweeps:
    """The pipeline of this benchmark on a runtime; `handed` counts what its handler was given."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.handed = 0
        self._pipelines = Pipelines()
        self._pipelines.declare(
            Pipeline(PIPELINE, self._handle, LatencyNeutral(lease=0, tick=0.001), PAGE, source=SOURCE)
        )
        runtime.pipelines = self._pipelines

    def _handle(self, batch: Batch) -> None:
        deque((record.document for record in batch), maxlen=0)
        self.handed += len(batch)

    def run(self, tenant: str) -> _Swept:
        """Notify, and do the tenant's runs until none is queued; what is timed is the runs."""
        gate, before, seconds = self.runtime.gate, self.handed, 0.0
        gate.notify(PIPELINE, tenant, self._pipelines[PIPELINE].policy.spacing)
        while (status := gate.look(PIPELINE, [tenant])[0]).state is State.QUEUED:
            started = time.perf_counter()
            slot.run_tenant(self.runtime, PIPELINE, tenant, status.token or "")
            seconds += time.perf_counter() - started
        self.runtime.redis.delete(*Queue)
        return _Swept(seconds, self.handed - before)


def _measure(records: int, largest: int) -> Report:
    """Sweep `records` of one tenant, then 500 and none beside up to `largest` that are handled."""
    with stage() as (runtime, _):
        document = _invoice()
        speeds = _speeds(runtime, records, document)
        sizes = decades(SMALLEST, largest)
        costs = [*_growth(runtime, sizes)]
    rate = {name: median(found) for name, found in speeds.items()}
    ours = speeds["TaskBridge"]
    ratios = {name: median_ratio(ours, found) for name, found in speeds.items()}
    names = (f"a batch of {PAGE}", "nothing pending", f"bare select of {PAGE}")
    slopes = [slope([*zip(sizes, found, strict=True)]) for found in zip(*costs, strict=True)]
    rows: list[Sequence[Cell]] = [(f"{size:,}", *cost) for size, cost in zip(sizes, costs, strict=True)]
    rows.append(("slope", *slopes))
    return Report(
        {"records": records, "largest": largest},
        [
            Table(
                f"{records:,} pending records of one tenant",
                ("", "records/s", "ratio of TaskBridge to it"),
                [(name, rate[name], ratios[name]) for name in speeds],
                f"A document has {len(document):,} bytes as JSON, and a page has {PAGE} records. The bare select marks "
                f"nothing as done. The queue with flags starts each of the {ROUNDS} rounds with a new table and is "
                "vacuumed.",
            ),
            Table(
                "ms for one run, if the other records of the tenant are already handled",
                ("records in the table", *names),
                rows,
                f"Each figure is the median of {SAMPLES} runs, from begin to settle. The bare select reads the same "
                "records. The slope shows how the cost grows with the table: at 0 it does not grow, and at 1 it grows "
                "in proportion.",
            ),
        ],
        [
            Target("records per second, ratio to the bare select", ratios["bare select"], 0.85, at_least=True),
            Target("records per second, ratio to a flag on each row", ratios["flag on each row"], 4, at_least=True),
            Target(f"slope of the cost of a batch of {PAGE}", slopes[0], 0.1),
        ],
    )


def _invoice() -> str:
    """Return an invoice as an importer stores it, with as many lines as the median of the example has."""
    line = {
        "stock_code": "23012",
        "description": "GLASS APOTHECARY BOTTLE PERFUME",
        "quantity": 6,
        "unit_price": "3.95",
        "total": "23.70",
    }
    head = {"number": "579894", "kind": "invoice", "date": "2011-12-01T08:26:00", "customer": "13098"}
    return json.dumps({**head, "lines": [line] * 8, "total": "189.60"})


def _speeds(runtime: Runtime, records: int, document: str) -> dict[str, list[float]]:
    """Return records per second by subject, by round."""
    _execute(runtime, TABLES)
    _fill(runtime, TENANT, 1, records, document)
    with _connection(runtime) as bare, _connection(runtime) as flagged:
        sweeps = _Sweeps(runtime)
        subjects: dict[str, Callable[[], float]] = {
            "TaskBridge": lambda: _rate(records, *_ours(sweeps)),
            "bare select": lambda: _rate(records, *_bare(bare)),
            "flag on each row": lambda: _rate(records, *_flagged(runtime, flagged)),
        }
        interleaved(subjects, 1)  # connections, caches, prepared statements
        return interleaved(subjects, ROUNDS)


def _rate(expected: int, seconds: float, records: int) -> float:
    if records != expected:
        raise AssertionError(f"{records} records were read, not {expected}")
    return records / seconds


def _ours(sweeps: _Sweeps) -> _Swept:
    _execute(sweeps.runtime, "DELETE FROM taskbridge.sync_cursors")
    return sweeps.run(TENANT)


def _bare(connection: psycopg.Connection[Any], tenant: str = TENANT, last: int = 0) -> _Swept:
    started, count = time.perf_counter(), 0
    while rows := connection.execute(BARE, (tenant, last, PAGE)).fetchall():
        last = rows[-1][0]
        count += len(rows)
    return _Swept(time.perf_counter() - started, count)


def _flagged(runtime: Runtime, connection: psycopg.Connection[Any]) -> _Swept:
    _execute(runtime, "TRUNCATE bench_flagged; INSERT INTO bench_flagged SELECT * FROM taskbridge.records")
    _execute(runtime, "VACUUM ANALYZE bench_flagged")
    started, count = time.perf_counter(), 0
    while True:
        with connection.transaction():
            rows = connection.execute(FLAGGED, (TENANT, PAGE)).fetchall()
            if not rows:
                return _Swept(time.perf_counter() - started, count)
            connection.execute(DONE, ([row[0] for row in rows],))
        count += len(rows)


def _growth(runtime: Runtime, sizes: list[int]) -> Iterator[tuple[float, ...]]:
    """Grow one tenant's records; yield what a batch, an empty run and a bare select cost at each size, in ms."""
    _execute(runtime, "TRUNCATE taskbridge.records; DELETE FROM taskbridge.sync_cursors")
    with _connection(runtime) as bare:
        sweeps, there = _Sweeps(runtime), 0
        sweeps.run(GROWN)
        for size in sizes:
            _fill(runtime, GROWN, there + 1, size, "{}")
            # Where a sweep of them all would put it.
            _execute(runtime, "UPDATE taskbridge.sync_cursors SET snapshot = pg_current_snapshot()")
            _execute(runtime, "CHECKPOINT")
            samples = [_sample(sweeps, bare, size + at * PAGE) for at in range(SAMPLES)]
            there = size + SAMPLES * PAGE
            yield tuple(median(sample) * 1000 for sample in zip(*samples, strict=True))


def _sample(sweeps: _Sweeps, bare: psycopg.Connection[Any], there: int) -> tuple[float, ...]:
    """Add a batch to the `there` records; return the seconds of a bare select of it, of its run and of an empty one."""
    (last,) = bare.execute("SELECT max(id) FROM taskbridge.records").fetchone() or (0,)
    _fill(sweeps.runtime, GROWN, there + 1, there + PAGE, "{}", vacuum=False)
    selected = _bare(bare, GROWN, last)
    batch, empty = sweeps.run(GROWN), sweeps.run(GROWN)
    if (batch.records, empty.records, selected.records) != (PAGE, 0, PAGE):
        raise AssertionError(f"not {PAGE} records and none: {batch}, {empty}, {selected}")
    return batch.seconds, empty.seconds, selected.seconds


def _fill(runtime: Runtime, tenant: str, first: int, last: int, document: str, *, vacuum: bool = True) -> None:
    for begin in range(first, last + 1, FILLED_AT_ONCE):
        end = min(last, begin + FILLED_AT_ONCE - 1)
        with runtime.engine.begin() as connection:
            connection.exec_driver_sql("SET LOCAL taskbridge.keep_ids = 'on'")
            values = {"tenant": tenant, "document": document, "first": begin, "last": end}
            connection.exec_driver_sql(FILL, values)
    if vacuum:
        _execute(runtime, "VACUUM ANALYZE taskbridge.records")


def _execute(runtime: Runtime, statements: str, **values: Any) -> None:
    with runtime.engine.execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
        connection.exec_driver_sql(statements, values or None)


@contextmanager
def _connection(runtime: Runtime) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(runtime.settings.postgres_url, autocommit=True) as connection:
        yield connection


SWEEP: Final = Benchmark(
    "sweep",
    "A batch costs the same however many records the table holds, and no row is flagged as done.",
    "Records per second, divided by the speed of a bare SELECT.",
    "Measures how many pending records of one tenant are read, delivered and advanced per second. One baseline is a "
    "bare SELECT of the same documents, page by page. The other is a queue in Postgres with a flag on each row. Then "
    "measures what a run costs as the table grows.",
    _measure,
    (
        Option("records", 50_000, 1_000, 10_000_000, "Pending records."),
        Option("largest", 1_000_000, 100_000, 100_000_000, "Records in the table at the end."),
    ),
    {"records": 1_000, "largest": 100_000},
    page={"largest": 10_000_000},
    unmet="TaskBridge is almost as fast as the bare SELECT. Even the bare SELECT is not four times as fast as the "
    "queue with flags.",
)
