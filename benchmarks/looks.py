"""What each answer of `taskbridge.observe` costs, and that it does not grow with tenants, records and runs.

The tenants have records that are handled, but for one in a hundred that has a pending one; one in a hundred fails, with
one of ten errors, and as many have a record in quarantine. There are as many runs as tenants, of the last day, and the
sums of each minute of a week. 10,000 tenants have a runner.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from statistics import median
from typing import Any, Final

import psycopg

from benchmarks.report import Benchmark, Cell, Option, Report, Table, Target
from benchmarks.rounds import decades
from benchmarks.stage import stage
from taskbridge.declaring.pipeline import Pipeline, Pipelines
from taskbridge.declaring.policy import LatencyNeutral
from taskbridge.observe import health, history, inspect, record, status
from taskbridge.observe.context import Context
from taskbridge.observe.history import Before
from taskbridge.process.runtime import Runtime
from taskbridge.store import keep_runs
from taskbridge.store.db import within

__all__ = ["LOOKS"]

PIPELINE: Final = "bench-looks"
SMALLEST: Final = 10_000
MOST_RUNNERS: Final = 10_000
CHUNK: Final = 500
LIMIT_MS: Final = 100.0
ROUNDS: Final = 7

RECORDS: Final = """
SET LOCAL taskbridge.keep_ids = 'on';
INSERT INTO taskbridge.records (id, source, tenant, key, revision, xid, document, recorded_at, changed_at)
SELECT i.id, 'bench-looks', 'tenant-' || n, 'key-' || k || '-' || n, i.id, pg_current_xact_id(), '{{"total": 1}}',
       now(), now()
FROM generate_series({first}, {last} - 1) n, generate_series({from_key}, {to_key} - 1) k,
     LATERAL (SELECT taskbridge.next_id('bench-looks') AS id WHERE n >= 0 AND k >= 0) i
"""
CURSORS: Final = """
INSERT INTO taskbridge.sync_cursors
    (pipeline, tenant, snapshot, runs, events, records, sweeps, failures, last_error, failing_since, failed_at,
     last_run_at)
SELECT 'bench-looks', 'tenant-' || n, pg_current_snapshot(), n, n, n, n, (n %% 100 = 1)::integer,
       CASE WHEN n %% 100 = 1 THEN 'ValueError: number ' || n / 100 %% 10 END, now(), now(), now()
FROM generate_series({first}, {last} - 1) n
"""
QUARANTINE: Final = """
INSERT INTO taskbridge.quarantine (pipeline, tenant, external_id, revision, reason, attempts)
SELECT 'bench-looks', r.tenant, r.key, r.revision, 'ValueError: number ' || n / 100 %% 10, 5
FROM generate_series({first}, {last} - 1, 100) n
JOIN taskbridge.records r ON r.source = 'bench-looks' AND r.tenant = 'tenant-' || n AND r.key = 'key-0-' || n
"""
PAUSES: Final = """
INSERT INTO taskbridge.pauses (pipeline, tenant, paused_by)
SELECT 'bench-looks', 'tenant-' || n, 'bench' FROM generate_series({first}, {last} - 1, 1000) n
"""
RUNS: Final = """
INSERT INTO taskbridge.runs
    (pipeline, tenant, token, began_at, ended_at, reason, worker, events, burst_run, records, rejected, outcome, error,
     first_event_ms, snapshot)
SELECT 'bench-looks', 'tenant-' || n, to_char(extract(epoch FROM t.at) * 1e6, 'FM0000000000000000') || '-' || n, t.at,
       t.at + interval '5 ms', 'event', 'bench@localhost', 2, 1, 10, 0,
       CASE WHEN n %% 100 = 1 THEN 'failed' ELSE 'handled' END, CASE WHEN n %% 100 = 1 THEN 'ValueError' END, 5,
       pg_current_snapshot()
FROM generate_series({first}, {last} - 1) n,
     LATERAL (SELECT now() - interval '1 day' * ({last} - n) / {last}::float8 AS at) t
"""
MINUTES: Final = """
INSERT INTO taskbridge.run_minutes
SELECT m, {runs} / 1440 + 1, 7, 1500, 700, 7000, 1, 3500, 3500, 'bench-looks', '{{1,2,3,4,5,6,7,8,9,10,11,12}}'
FROM generate_series(date_trunc('minute', now()) - interval '7 days', now(), interval '1 minute') m
ON CONFLICT (pipeline, minute) DO UPDATE SET runs = excluded.runs
"""


class _Scene:
    """A deployment that grows."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        runtime.pipelines = Pipelines()
        runtime.pipelines.declare(Pipeline(PIPELINE, print, LatencyNeutral(lease=3_000, tick=3_000), 500))
        runtime.check()
        keep_runs(runtime.engine, 7)
        names = {PIPELINE: runtime.pipelines[PIPELINE]}
        self.context = Context(runtime.engine, runtime.gate, names, runtime.settings)

    def grow(self, first: int, last: int, records: int) -> None:
        """Add the tenants from `first` to `last`."""
        for begin in range(first, last, 100_000):
            span = {"first": begin, "last": min(last, begin + 100_000)}
            self._do(RECORDS, **span, from_key=0, to_key=records)
            self._do(CURSORS, **span)
            self._do(QUARANTINE, **span)
            self._do(PAUSES, **span)
            self._do(RUNS, **span)
        self._do(MINUTES, runs=last)
        pending = {"first": last - max(1, (last - first) // 100), "last": last}
        self._do(RECORDS, **pending, from_key=records, to_key=records + 1)
        active = [f"tenant-{n}" for n in range(min(last, MOST_RUNNERS))]
        spacing = self._runtime.pipelines[PIPELINE].policy.spacing
        for at in range(0, len(active), CHUNK):
            self._runtime.gate.notify_many([(PIPELINE, name, spacing) for name in active[at : at + CHUNK]])
        with psycopg.connect(self._runtime.settings.postgres_url, autocommit=True) as connection:
            connection.execute("VACUUM ANALYZE")
            connection.execute("CHECKPOINT")

    def _do(self, statement: str, **values: int) -> None:
        with self._runtime.engine.begin() as connection, within(connection, None):
            connection.exec_driver_sql(statement.format(**values))

    def asked(self, tenants: int) -> dict[str, Callable[[], Any]]:
        """Return each answer as somebody asks for it."""
        context, half, now = self.context, f"tenant-{tenants // 2}", datetime.now(UTC)
        key = f"key-0-{tenants // 2}"
        failing = f"tenant-{tenants // 200 * 100 + 1}"
        questions: dict[str, tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = {
            "health checks": (health.health, (), {}),
            "find a tenant": (record.find, (half,), {}),
            "find a key": (record.find, (key,), {}),
            "find a key of a tenant": (record.records, (key, PIPELINE, half), {}),
            "find nothing": (record.find, ("nothing is called so",), {}),
            "history of a record": (record.story, (PIPELINE, half, key, PIPELINE), {}),
            "state of a tenant": (inspect.tenant, (PIPELINE, half), {}),
            "state of a failing tenant": (inspect.tenant, (PIPELINE, failing), {}),
            "tenants, by name": (status.tenants, (PIPELINE,), {"after": half}),
            "failing tenants, by name": (status.tenants, (PIPELINE,), {"failing": True, "after": half}),
            "tenants, by failures": (status.tenants, (PIPELINE,), {"sort": "failures"}),
            "in quarantine": (status.quarantined, (PIPELINE,), {}),
            "busiest tenants, by events": (history.noisy, (), {}),
            "busiest tenants, by run time": (history.noisy, (PIPELINE,), {"by": "run time"}),
            "last runs": (history.runs, (), {}),
            "last runs that failed": (history.runs, (PIPELINE,), {"failed": True}),
            "runs of 12 hours ago": (history.runs, (PIPELINE,), {"before": Before(now - timedelta(hours=12))}),
            "runs of a tenant": (history.runs, (PIPELINE, half), {}),
            "last bursts": (history.bursts, (PIPELINE, half), {}),
            "events and runs over a week": (history.saved, (), {}),
            "current failures": (status.failing, (), {}),
            "what failed in a day": (history.failed, (), {}),
            "chart of a day": (history.over_time, (), {}),
            "chart of a week": (history.over_time, (), {"hours": 24 * 7}),
        }
        return {
            name: partial(question, context, *arguments, **options)
            for name, (question, arguments, options) in questions.items()
        }


def _measure(tenants: int, records: int) -> Report:
    """Request each answer with more and more tenants, of so many records each."""
    sizes = decades(SMALLEST, tenants)
    found: dict[str, list[float]] = {}
    longest: dict[str, float] = {}
    with stage(history_days=7) as (runtime, _):
        scene, before = _Scene(runtime), 0
        for size in sizes:
            scene.grow(before, size, records)
            before = size
            for name, ask in scene.asked(size).items():
                took = [_milliseconds(ask) for _ in range(ROUNDS)]
                found.setdefault(name, []).append(median(took))
                longest[name] = max(took)
    rows: list[list[Cell]] = [[name, *values, longest[name]] for name, values in found.items()]
    slowest = max(found, key=lambda name: found[name][-1])
    return Report(
        {"tenants": tenants, "records": records},
        [
            Table(
                "ms per answer",
                ("answer", *(f"{size:,} tenants" for size in sizes), "longest"),
                rows,
                f"Each figure is the median of {ROUNDS} requests. The last column is the longest request with the most "
                f"tenants. Each tenant has {records:,} records and one run in the history.",
            )
        ],
        [Target(f'the slowest answer ("{slowest}"), ms with the most tenants', found[slowest][-1], LIMIT_MS)],
    )


def _milliseconds(ask: Callable[[], Any]) -> float:
    started = time.perf_counter()
    ask()
    return (time.perf_counter() - started) * 1e3


LOOKS: Final = Benchmark(
    "looks",
    "Every question that an operator asks is answered at once, however many tenants there are.",
    "Milliseconds for the slowest answer, with a million tenants.",
    "Requests each answer of the command line and the dashboard while the number of tenants, records and runs grows.",
    _measure,
    (
        Option("tenants", 1_000_000, 100, 10_000_000, "Tenants, at last."),
        Option("records", 10, 1, 1_000, "Records of each."),
    ),
    {"tenants": 200, "records": 1},
)
