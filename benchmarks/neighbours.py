"""How long first events wait while another tenant has a million pending records and a slow handler.

The delay of a first event is what the runner notes itself: from the event, by Redis's clock, to just before the handler
is called with its record. The baselines are the same worker while nobody else has work, and plain Celery with one
queue, in which the large tenant's records came first.
"""

from __future__ import annotations

import time
from typing import Final

from celery import Task

from benchmarks import plain
from benchmarks.marks import MARKS, Marks
from benchmarks.report import Benchmark, Option, Report, Table, Target
from benchmarks.rounds import Summary, summary
from benchmarks.stage import stage, wait_until, worker
from taskbridge.declaring.pipeline import INVOICES
from taskbridge.process.runtime import Runtime
from taskbridge.store import record_invoice

__all__ = ["NEIGHBOURS"]

BETWEEN_EVENTS: Final = 0.1
SLOW: Final = 0.002
PART: Final = 500
"""Records of one task of the import, as many as a batch of ours has at the most."""


def _measure(records: int, tenants: int, concurrency: int, backlog: int) -> Report:
    """Measure first events beside nobody, and beside `records` of one tenant; then those of plain Celery."""
    options = ("--concurrency", str(concurrency), "--prefetch-multiplier", "1")
    slow = {"TASKBRIDGE_BENCH_SECONDS_PER_RECORD": str(SLOW)}
    with stage() as (runtime, directory):
        with worker(runtime, directory, *options, **slow):
            idle, busy, rate = _ours(runtime, records, tenants, concurrency)
        calls = directory / "calls"
        with worker(runtime, directory, *options, app=plain.__name__, **slow, **{MARKS: str(calls)}):
            plain_idle, plain_busy = _plain(runtime, Marks(calls), backlog, tenants, concurrency)
        within = 2 * idle.p99 + runtime.settings.run_budget * 1000
    return Report(
        {"records": records, "tenants": tenants, "concurrency": concurrency, "backlog": backlog},
        [
            Table(
                "Delay of first events",
                ("", "median ms", "p99 ms", "longest ms", "records/s of the large tenant"),
                [
                    ("alone", *idle, None),
                    (f"beside {records:,} records of one tenant", *busy, rate),
                    ("plain Celery, alone", *plain_idle, None),
                    (f"plain Celery, beside {backlog:,} records of one tenant", *plain_busy, None),
                ],
                f"Plain Celery has one queue, in which the large tenant's records lie as tasks of {PART} each before "
                f"the first events come. It has only {backlog:,} of them, so that the measurement ends: its delays are "
                "about the time that these take, and grow with them.",
            )
        ],
        [Target("p99 beside the large tenant, ms, against twice the idle p99 and one run budget", busy.p99, within)],
    )


def _ours(runtime: Runtime, records: int, tenants: int, concurrency: int) -> tuple[Summary, Summary, float]:
    """Return the delays alone and beside the large tenant, in ms, and how many of its records were handled a second."""
    _first_events(runtime, "warm", concurrency * 4)
    idle = summary(_first_events(runtime, "idle", tenants))
    _import(runtime, "large", records)
    runtime.gate.notify(INVOICES, "large", runtime.pipelines[INVOICES].policy.spacing)
    wait_until(lambda: _handled(runtime) > 0, "the large tenant is under way", 60)
    before, started = _handled(runtime), time.monotonic()
    busy = summary(_first_events(runtime, "busy", tenants))
    return idle, busy, (_handled(runtime) - before) / (time.monotonic() - started)


def _plain(runtime: Runtime, marks: Marks, backlog: int, tenants: int, concurrency: int) -> tuple[Summary, Summary]:
    """Return the delays of plain Celery alone and behind a backlog, in ms."""
    plain.prepare(runtime.engine)
    _, tasks = plain.make_app(runtime.settings.redis_url)
    _plain_events(runtime, tasks["finish"], marks, concurrency * 4)
    idle = summary(_plain_events(runtime, tasks["finish"], marks, tenants))
    numbers = plain.write(runtime.engine, ["large"] * backlog)
    for start in range(0, backlog, PART):
        part = numbers[start : start + PART]
        tasks["import_part"].delay("large", part[0], part[-1])
    return idle, summary(_plain_events(runtime, tasks["finish"], marks, tenants))


def _plain_events(runtime: Runtime, task: Task[..., None], marks: Marks, count: int) -> list[float]:
    """Send events of tenants with one record each; return how long after its event each handler was called, in ms."""
    before, sent = marks.count(), []
    for at in range(count):
        tenant = f"tenant-{before + at}"
        plain.write(runtime.engine, [tenant])
        sent.append(time.time())
        task.delay(tenant)
        time.sleep(BETWEEN_EVENTS)
    wait_until(lambda: marks.count() >= before + count, f"{count} first events", 600)
    # One queue: they are called in the order in which they were sent.
    return [(called - at) * 1000 for called, at in zip(sorted(marks.since(before)), sent, strict=True)]


def _first_events(runtime: Runtime, prefix: str, count: int) -> list[int]:
    names = [f"{prefix}-{at}" for at in range(count)]
    spacing = runtime.pipelines[INVOICES].policy.spacing
    for name in names:
        record_invoice(runtime.engine, name, "1", {"number": "1"})
        runtime.gate.notify(INVOICES, name, spacing)
        time.sleep(BETWEEN_EVENTS)
    delays: list[int] = []

    def all_handled() -> bool:
        with runtime.engine.connect() as connection:
            rows = connection.exec_driver_sql(
                "SELECT first_event_ms FROM taskbridge.sync_cursors WHERE starts_with(tenant, %s) AND "
                "first_event_ms IS NOT NULL",
                (f"{prefix}-",),
            )
            delays[:] = rows.scalars()
        return len(delays) == count

    wait_until(all_handled, f"{count} first events", 120)
    return delays


def _import(runtime: Runtime, tenant: str, records: int) -> None:
    with runtime.engine.begin() as connection:
        connection.exec_driver_sql(
            "INSERT INTO taskbridge.records (source, tenant, key, document) "
            "SELECT 'invoices', %(tenant)s, n::text, '{}' FROM generate_series(1, %(records)s) n",
            {"tenant": tenant, "records": records},
        )


def _handled(runtime: Runtime) -> int:
    with runtime.engine.connect() as connection:
        text = "SELECT coalesce(sum(records), 0) FROM taskbridge.sync_cursors WHERE tenant = 'large'"
        return int(connection.exec_driver_sql(text).scalar_one())


NEIGHBOURS: Final = Benchmark(
    "neighbours",
    "A very large tenant does not block the others.",
    "A first event waits at most this long, in 99 of 100 cases, while another tenant has a million pending "
    "records and the worker has one slot.",
    "Measure how long first events wait while another tenant has very many pending records and a slow handler. The "
    "baselines are the same worker while nobody else has work, and plain Celery with one queue for all.",
    _measure,
    (
        Option("records", 1_000_000, 1_000, 100_000_000, "Records of the large tenant."),
        Option("tenants", 100, 2, 10_000, "Tenants with one event each."),
        Option("concurrency", 1, 1, 64, "Runs at a time."),
        Option("backlog", 10_000, 2, 1_000_000, "Records of the large tenant of plain Celery."),
    ),
    {"records": 5_000, "tenants": 5, "concurrency": 1, "backlog": 600},
)
