"""How long first events wait beside tenants with a backlog, and what the backlog loses by making way for them.

The delay of a first event is what the runner notes itself: from the event, by Redis's clock, to just before the handler
is called with its record. Plain Celery, the baseline, has a queue for small tenants beside that of the import.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from celery import Task

from benchmarks import plain
from benchmarks.marks import MARKS, Marks
from benchmarks.report import Benchmark, Cell, Option, Report, Table, Target
from benchmarks.rounds import Summary, summary
from benchmarks.stage import stage, wait_until, worker
from taskbridge.declaring.pipeline import INVOICES
from taskbridge.process.runtime import Runtime
from taskbridge.store import record_invoice
from taskbridge.store.db import within

__all__ = ["NEIGHBOURS"]

PART: Final = 500
"""Records of one task of plain Celery's import, as many as a batch of ours has at most."""
UNDISTURBED_SECONDS: Final = 5.0
"""How long the backlog is measured while nobody else is active."""


class _Case(NamedTuple):
    """A load: `large` tenants with `records` each, a handler's cost in seconds, and a first event each `every` s."""

    name: str
    slots: int
    large: int
    records: int
    per_record: float
    per_call: float
    every: float
    most_p99: float
    most_median: float
    reserved: bool = False
    """Whether one of the slots takes first events only."""


CASES: Final = (
    _Case("1 slot, 1 tenant, 2 ms per record", 1, 1, 1_000_000, 0.002, 0, 0.05, 100, 60),
    _Case("2 slots, 4 tenants, 2 ms per record", 2, 4, 250_000, 0.002, 0, 0.05, 100, 60),
    _Case("2 slots, 4 tenants, 300 ms per call", 2, 4, 250_000, 0, 0.3, 1.0, 350, 200),
    _Case("the same, 1 slot reserved", 2, 4, 250_000, 0, 0.3, 1.0, 50, 50, reserved=True),
    _Case("2 slots, 1,000 tenants, 0.1 ms per record", 2, 1_000, 100, 0.0001, 0, 0.05, 50, 16),
)


def _measure(events: int, scale: float, plain_records: int) -> Report:
    """Measure each case, ours and then plain Celery's."""
    rows: list[list[Cell]] = []
    targets: list[Target] = []
    for case in CASES:
        # A second apart, they would take minutes.
        count = max(2, events // 4) if case.every >= 1 else events
        busy, undisturbed, beside = _ours(case, count, scale)
        theirs = _plain(case, count, min(plain_records, round(case.large * case.records * scale)))
        rows.append([case.name, busy.median, busy.p99, undisturbed, beside])
        rows.append([f"plain Celery: {case.name}", theirs.median, theirs.p99, None, None])
        targets += [
            Target(f"{case.name}: p99, ms", busy.p99, case.most_p99),
            Target(f"{case.name}: median, ms", busy.median, case.most_median),
        ]
    columns = ("", "median ms", "p99 ms", "records/s, no first events", "records/s, with first events")
    note = (
        "First events arrive every 50 ms, or every second if a call takes 300 ms. Plain Celery has one worker for both "
        f"queues. Its backlog has at most {plain_records:,} records, in tasks of {PART} records each. The last two "
        "columns show how fast the backlog is handled."
    )
    options = {"events": events, "scale": scale, "plain_records": plain_records}
    return Report(options, [Table("Delay of first events", columns, rows, note)], targets)


def _ours(case: _Case, events: int, scale: float) -> tuple[Summary, float | None, float]:
    """Return the delays, in ms, and the records/s of the backlog while nobody else is active and beside the events."""
    with stage() as (runtime, directory), _workers(case, runtime, directory):
        _first_events(runtime, "warm", 8, 0.05)
        _import(runtime, case.large, max(100, round(case.records * scale)))
        # Nobody notifies: the change poller finds these tenants, and none of their runs counts as a first event.
        wait_until(lambda: _handled(runtime) > 0, "the backlog is under way", 120)
        undisturbed = None
        if case.large < 100:
            # So that the cost of a record is known.
            time.sleep(2)
            undisturbed = _rate(runtime, UNDISTURBED_SECONDS)
        before, started = _handled(runtime), time.monotonic()
        delays = _first_events(runtime, "busy", events, case.every)
        return summary(delays), undisturbed, (_handled(runtime) - before) / (time.monotonic() - started)


def _rate(runtime: Runtime, seconds: float) -> float:
    before, started = _handled(runtime), time.monotonic()
    time.sleep(seconds)
    return (_handled(runtime) - before) / (time.monotonic() - started)


@contextmanager
def _workers(case: _Case, runtime: Runtime, directory: Path) -> Iterator[None]:
    costs = {
        "TASKBRIDGE_BENCH_SECONDS_PER_RECORD": str(case.per_record),
        "TASKBRIDGE_BENCH_SECONDS_PER_CALL": str(case.per_call),
    }
    options = ["--prefetch-multiplier", "1", "--concurrency"]
    slots = [[str(case.slots)]]
    if case.reserved:
        slots = [[str(case.slots - 1)], ["1", "-Q", runtime.keys.queues[0]]]
    with ExitStack() as stack:
        for each in slots:
            stack.enter_context(worker(runtime, directory, *options, *each, **costs))
        yield


def _plain(case: _Case, events: int, backlog: int) -> Summary:
    """Return the delays of plain Celery, in ms; events that the backlog's end meets count like the others."""
    costs = {
        "TASKBRIDGE_BENCH_SECONDS_PER_RECORD": str(case.per_record),
        "TASKBRIDGE_BENCH_SECONDS_PER_CALL": str(case.per_call),
    }
    options = ["--concurrency", str(case.slots), "--prefetch-multiplier", "1", "-Q", "celery,imports"]
    with stage() as (runtime, directory):
        calls = directory / "calls"
        with worker(runtime, directory, *options, app=plain.__name__, **costs, **{MARKS: str(calls)}):
            plain.prepare(runtime.engine)
            _, tasks = plain.make_app(runtime.settings.redis_url)
            _plain_events(runtime, tasks["finish"], Marks(calls), 8, 0.05)
            numbers = plain.write(runtime.engine, ["large"] * backlog)
            for start in range(0, backlog, PART):
                part = numbers[start : start + PART]
                tasks["import_part"].apply_async(("large", part[0], part[-1]), queue="imports")
            return summary(_plain_events(runtime, tasks["finish"], Marks(calls), events, case.every))


def _plain_events(runtime: Runtime, task: Task[..., None], marks: Marks, count: int, every: float) -> list[float]:
    """Send events of tenants with one record each; return how long after its event each handler was called, in ms."""
    before, sent = marks.count(), []
    for at in range(count):
        tenant = f"tenant-{before + at}"
        plain.write(runtime.engine, [tenant])
        sent.append(time.time())
        task.delay(tenant)
        time.sleep(every)
    wait_until(lambda: marks.count() >= before + count, f"{count} first events", 600)
    # One queue: they are called in the order in which they were sent.
    return [(called - at) * 1000 for called, at in zip(sorted(marks.since(before)), sent, strict=True)]


def _first_events(runtime: Runtime, prefix: str, count: int, every: float) -> list[int]:
    names = [f"{prefix}-{at}" for at in range(count)]
    spacing = runtime.pipelines[INVOICES].policy.spacing
    for name in names:
        record_invoice(runtime.engine, name, "1", {"number": "1"})
        runtime.gate.notify(INVOICES, name, spacing)
        time.sleep(every)
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


def _import(runtime: Runtime, tenants: int, records: int) -> None:
    with runtime.engine.connect() as connection, within(connection, None), connection.begin():
        connection.exec_driver_sql(
            "INSERT INTO taskbridge.records (source, tenant, key, document) "
            "SELECT 'invoices', 'large-' || t, n::text, '{}' "
            "FROM generate_series(0, %(tenants)s - 1) t, generate_series(1, %(records)s) n",
            {"tenants": tenants, "records": records},
        )


def _handled(runtime: Runtime) -> int:
    with runtime.engine.connect() as connection:
        text = "SELECT coalesce(sum(records), 0) FROM taskbridge.sync_cursors WHERE starts_with(tenant, 'large-')"
        return int(connection.exec_driver_sql(text).scalar_one())


NEIGHBOURS: Final = Benchmark(
    "neighbours",
    "A first event does not wait behind someone else's backlog.",
    "Milliseconds that a first event waits in 99 of 100 cases, while a backlog keeps the only slot busy.",
    "Measures how long first events wait while other tenants have many pending records and a slow handler. Also "
    "measures how many of those records are handled per second. The baseline is plain Celery with a separate queue "
    "for small tenants.",
    _measure,
    (
        Option("events", 100, 2, 10_000, "First events of each case."),
        Option("scale", 1.0, 0.0001, 10.0, "Part of the backlog's records."),
        Option("plain_records", 10_000, 2, 1_000_000, "Records of plain Celery's backlog."),
    ),
    {"events": 5, "scale": 0.01, "plain_records": 600},
    unmet="A first event waits until the handler call in progress has ended and its batch is committed. The records "
    "of one call take about the latency budget (50 ms). With 1,000 short backlogs, begin, claim and settle of "
    "each run add to that.",
)
