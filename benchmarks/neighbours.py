"""How long first events wait while other tenants have a backlog and a slow handler.

The delay of a first event is what the runner notes itself: from the event, by Redis's clock, to just before the handler
is called with its record. The baselines are the same worker while nobody else has work, and plain Celery with a queue
of its own for small tenants, while the backlog lies in the other queue as tasks of one batch each.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks import plain
from benchmarks.marks import MARKS, Marks
from benchmarks.report import Benchmark, Option, Report, Table, Target
from benchmarks.rounds import Summary, summary
from benchmarks.stage import stage, wait_until, worker
from taskbridge.declaring.pipeline import INVOICES
from taskbridge.process.runtime import Runtime
from taskbridge.store import record_invoice

__all__ = ["NEIGHBOURS"]

PART: Final = 500
"""Records of one task of plain Celery's backlog, as many as a batch of ours has at the most."""
PAGE: Final = 20_000
"""Records of one statement, which has a time limit."""
RATE_SECONDS: Final = 3.0
BUSY_EVENTS: Final = 0.05
"""Seconds between two first events while the speed of the backlog beside them is measured."""


class Case(NamedTuple):
    """`tenants` with `records` each, whose handler takes `per_call` and `per_record` seconds; bounds in ms."""

    name: str
    slots: int
    tenants: int
    records: int
    per_record: float
    per_call: float
    between: float
    p99: float
    median: float
    reserved: int = 0


class Found(NamedTuple):
    """Delays alone and beside the backlog, in ms, and records of the backlog per second, alone and beside events."""

    idle: Summary
    busy: Summary
    rate: float
    rate_beside: float


def _cases(records: int) -> list[Case]:
    slow = Case("2 slots, 4 tenants, 300 ms a call", 2, 4, records, 0.0, 0.3, 1.0, 350, 200)
    return [
        Case("1 slot, 1 tenant, 2 ms a record", 1, 1, records, 0.002, 0.0, 0.1, 100, 60),
        Case("2 slots, 4 tenants, 2 ms a record", 2, 4, records, 0.002, 0.0, 0.1, 100, 60),
        slow,
        slow._replace(name=f"{slow.name}, 1 reserved", p99=50, median=50, reserved=1),
        Case(
            "2 slots, 1,000 tenants of 100 records, 0.1 ms a record",
            *(2, min(1_000, records), 100, 0.0001, 0.0, 0.1, 50, 16),
        ),
    ]


def _measure(records: int, events: int, only: int) -> Report:
    """Measure `events` first events of each case, alone and beside the backlog; then those of plain Celery."""
    cases = _cases(records)
    cases = cases if not only else cases[only - 1 : only]
    found: dict[Case, Found] = {}
    others: dict[Case, Summary] = {}
    with stage() as (runtime, directory):
        plain.prepare(runtime.engine)
        for case in cases:
            found[case] = _ours(runtime, directory, case, events)
            others[case] = _plain(runtime, directory, case, events)
    rows = []
    for case, ours in found.items():
        rows += [
            (f"{case.name}: alone", *ours.idle, ours.rate),
            (f"{case.name}: beside the backlog", *ours.busy, ours.rate_beside),
            (f"{case.name}: plain Celery, beside the backlog", *others[case], None),
        ]
    targets = [
        Target(f"{name} ms, {case.name}", value, limit)
        for case, ours in found.items()
        for name, value, limit in (("p99", ours.busy.p99, case.p99), ("median", ours.busy.median, case.median))
    ]
    note = (
        f"Plain Celery has a queue of its own for first events, and tasks of {PART} records each in the other one. The "
        f"records/s of the backlog are those with nobody else, and beside {1 / BUSY_EVENTS:.0f} first events a second "
        "(one where a call takes 300 ms)."
    )
    columns = ("", "median ms", "p99 ms", "longest ms", "records/s of the backlog")
    parameters = {"records": records, "events": events, "only": only}
    return Report(parameters, [Table("Delay of first events", columns, rows, note)], targets)


def _environment(case: Case) -> dict[str, str]:
    return {
        "TASKBRIDGE_BENCH_SECONDS_PER_RECORD": str(case.per_record),
        "TASKBRIDGE_BENCH_SECONDS_PER_CALL": str(case.per_call),
        "TASKBRIDGE_RESERVED": str(case.reserved),
    }


def _ours(runtime: Runtime, directory: Path, case: Case, events: int) -> Found:
    with runtime.engine.begin() as connection:
        connection.exec_driver_sql("TRUNCATE taskbridge.records, taskbridge.sync_cursors")
    runtime.redis.flushdb()
    with worker(runtime, directory, "--concurrency", str(case.slots), **_environment(case)):
        _first_events(runtime, "warm", case.slots * 4, case.between / 4)
        idle = summary(_first_events(runtime, "idle", max(2, events // 5), max(case.between, case.per_call * 1.2)))
        _import(runtime, case)
        wait_until(lambda: _handled(runtime) > case.records / 100, "the backlog is under way", 60)
        rate = 0.0 if case.tenants > 10 else _rate(runtime, lambda: time.sleep(RATE_SECONDS))
        busy = summary(_first_events(runtime, "busy", events, case.between))
        between = max(BUSY_EVENTS, case.per_call * 3)
        count = max(2, int(RATE_SECONDS / between))
        rate_beside = _rate(runtime, lambda: _send(runtime, "more", count, between))
    return Found(idle, busy, rate, rate_beside)


def _plain(runtime: Runtime, directory: Path, case: Case, events: int) -> Summary:
    """Return the delays of plain Celery beside a backlog that lasts as long as they come, in ms."""
    with runtime.engine.begin() as connection:
        connection.exec_driver_sql("TRUNCATE plain_records")
    runtime.redis.flushdb()
    calls = directory / f"calls-{case.name.replace(' ', '-')}"
    marks = Marks(calls)
    _, tasks = plain.make_app(runtime.settings.redis_url)
    part = min(PART, case.records)
    of_one = case.per_call + part * case.per_record
    parts = min(case.tenants * case.records // part, int(events * case.between * case.slots / of_one) + 2 * case.slots)
    numbers = plain.write(runtime.engine, ["large"] * part * parts)
    options = ("--concurrency", str(case.slots), "--prefetch-multiplier", "1", "-Q", f"{plain.SMALL},{plain.QUEUE}")
    with worker(runtime, directory, *options, app=plain.__name__, **_environment(case), **{MARKS: str(calls)}):
        for start in range(0, len(numbers), part):
            some = numbers[start : start + part]
            tasks["import_part"].delay("large", some[0], some[-1])
        before, sent = marks.count(), []
        for at in range(events):
            tenant = f"tenant-{at}"
            plain.write(runtime.engine, [tenant])
            sent.append(time.time())
            tasks["finish"].apply_async((tenant,), queue=plain.SMALL)
            time.sleep(case.between)
        wait_until(lambda: marks.count() >= before + events, f"{events} first events", 600)
    # One queue: they are called in the order in which they were sent.
    return summary([(called - at) * 1000 for called, at in zip(sorted(marks.since(before)), sent, strict=True)])


def _send(runtime: Runtime, prefix: str, count: int, between: float) -> list[str]:
    """Send events of tenants with one record each; return their names."""
    names = [f"{prefix}-{at}" for at in range(count)]
    spacing = runtime.pipelines[INVOICES].policy.spacing
    for name in names:
        record_invoice(runtime.engine, name, "1", {"number": "1"})
        runtime.gate.notify(INVOICES, name, spacing)
        time.sleep(between)
    return names


def _first_events(runtime: Runtime, prefix: str, count: int, between: float) -> list[int]:
    """Return how long after its event each tenant's handler was called, in ms."""
    _send(runtime, prefix, count, between)
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


def _import(runtime: Runtime, case: Case) -> None:
    names = [f"large {at}" for at in range(case.tenants)]
    each = max(1, PAGE // case.tenants)
    for start in range(0, case.records, each):
        with runtime.engine.begin() as connection:
            connection.exec_driver_sql(
                "INSERT INTO taskbridge.records (source, tenant, key, document) SELECT 'invoices', tenant, n::text, "
                "'{}' FROM unnest(%(names)s::text[]) tenant, generate_series(%(first)s::int, %(last)s::int) n",
                {"names": names, "first": start + 1, "last": min(case.records, start + each)},
            )
    spacing = runtime.pipelines[INVOICES].policy.spacing
    runtime.gate.notify_many([(INVOICES, name, spacing) for name in names])


def _rate(runtime: Runtime, meanwhile: Callable[[], object]) -> float:
    """Return how many records of the backlog are handled a second."""
    before, started = _handled(runtime), time.monotonic()
    meanwhile()
    return (_handled(runtime) - before) / (time.monotonic() - started)


def _handled(runtime: Runtime) -> int:
    with runtime.engine.connect() as connection:
        text = "SELECT coalesce(sum(records), 0) FROM taskbridge.sync_cursors WHERE starts_with(tenant, 'large')"
        return int(connection.exec_driver_sql(text).scalar_one())


NEIGHBOURS: Final = Benchmark(
    "neighbours",
    "A first event does not wait behind other tenants' backlogs.",
    "A first event waits at most this long, in 99 of 100 cases, while another tenant has a million pending records and "
    "the worker has one slot.",
    "Measure how long first events wait while other tenants have very many pending records and a slow handler. The "
    "baselines are the same worker while nobody else has work, and plain Celery with a queue of its own for them.",
    _measure,
    (
        Option("records", 1_000_000, 100, 100_000_000, "Records of each large tenant."),
        Option("events", 60, 2, 10_000, "First events beside each backlog."),
        Option("only", 0, 0, 5, "Measure this case alone; 0: all."),
    ),
    {"records": 2_000, "events": 3, "only": 1},
)
