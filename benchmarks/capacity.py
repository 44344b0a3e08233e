"""What events, runs and records cost in CPU time, and what servers and workers carry by that.

CPU time and not wall time: it does not depend on what else the machine does, and it adds up, so that one machine can
tell what several carry. Units are measured; the loads are put together from them on paper, and a part of one is
measured as well, to see whether that holds.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks import nothing
from benchmarks.benchmark import Benchmark, Option
from benchmarks.cpu import Cpu, process
from benchmarks.loads import (
    ABSORBED,
    BURST,
    END,
    FIRST,
    IDLE,
    MESSAGE,
    ONE,
    PER_TRANSACTION,
    RECORD,
    SET,
    TASK,
    WHO,
    WRITE,
    WRITES,
    Cost,
    Load,
    carried,
    counted,
    loads_of,
    medians,
    minus,
    plus,
    scaled,
    to_fill_redis,
    workers,
)
from benchmarks.report import Headline, Report, Table, Target
from benchmarks.rounds import interleaved
from benchmarks.stage import stage, wait_until, worker
from taskbridge.declaring.pipeline import INVOICES
from taskbridge.gate import Keys, Spacing
from taskbridge.process.runtime import Runtime
from taskbridge.producing.notify import notify
from taskbridge.store import record_invoice

__all__ = ["CAPACITY"]

HANDLERS: Final = "benchmarks.capacity_handlers"
IDLE_SECONDS: Final = 1.0
LEASE_MS_PER_TENANT: Final = 4
"""The lease must outlast the first runs of all tenants."""
DOCUMENT: Final = {
    "total": "74.25",
    "currency": "GBP",
    "lines": [{"sku": "85123A", "quantity": 6, "price": "2.55"}] * 3,
}
NEVER: Final = {"republish_after": 3_600.0, "base_interval": 3_600.0}
"""Nothing but an event may start a run while runs are counted."""


def _measure(events: int, tenants: int, records: int, rounds: int, postgres_cores: int, worker_cores: int) -> Report:
    """Measure units with `events` events, runs of `tenants` tenants, and imports of `records` records each."""
    process()  # so that it is said at once what is missing
    with stage(**NEVER) as (runtime, directory):
        units = _events_and_writes(runtime, events, rounds)
        units |= _without_events(_runs(runtime, directory, tenants, records, rounds), units)
    units[RECORD] = scaled(minus(units[f"run, {counted(records)}"], units[ONE]), 1 / (records - 1))
    loads, cores = loads_of(units, records), {"Redis": 1, "Postgres": postgres_cores, "workers": worker_cores}
    return Report(
        {
            "events": events,
            "tenants": tenants,
            "records": records,
            "rounds": rounds,
            "postgres_cores": postgres_cores,
            "worker_cores": worker_cores,
        },
        [_unit_costs(units, rounds), *(carried(load, cores) for load in loads), to_fill_redis(loads)],
        [Target(f"worker in a run of {BURST} records: formula off the measurement, %", _deviation(units), 25)],
        headlines=_headlines(units, loads[1]),
    )


def _deviation(units: Mapping[str, Cost]) -> float:
    """Return by how many per cent the formula for a run of a burst misses the measured one."""
    measured = workers(units[f"run, {counted(BURST)}"])
    paper = workers(plus(units[ONE], scaled(units[RECORD], BURST - 1)))
    return abs(paper / measured - 1) * 100 if measured else 0.0


def _events_and_writes(runtime: Runtime, events: int, rounds: int) -> dict[str, Cost]:
    """Measure what producers do, while no worker runs."""
    app = nothing.make_app(runtime.settings.redis_url)
    task, names = app.tasks[nothing.NOTHING], [f"tenant-{at}" for at in range(events)]
    few = names[: max(1, events // 10)]
    work: dict[str, tuple[Callable[[], object], int]] = {
        SET: (lambda: [runtime.redis.set(name, "1", px=1_200) for name in names], events),
        MESSAGE: (lambda: [task.delay(name) for name in names], events),
        ABSORBED: (lambda: [notify(runtime.app, "busy") for _ in names], events),
        FIRST: (lambda: [notify(runtime.app, name) for name in names], events),
        WRITE: (lambda: _write_each(runtime, few), len(few)),
        WRITES: (lambda: _write_together(runtime, few), len(few)),
    }
    meter = _Meter(runtime)

    def measured(subject: Callable[[], object], count: int) -> Cost:
        runtime.redis.flushdb()
        notify(runtime.app, "busy")
        return meter.cost(subject, count)

    for subject, _ in work.values():
        subject()  # connections, scripts and plans are made once
    found = interleaved({name: partial(measured, *one) for name, one in work.items()}, rounds)
    runtime.redis.flushdb()
    app.close()
    return {name: medians(costs) for name, costs in found.items()}


def _runs(runtime: Runtime, directory: Path, tenants: int, records: int, rounds: int) -> dict[str, Cost]:
    """Measure what workers do: runs with one record, with a burst, with an import, and the end of a lease."""
    options = ("--concurrency", "1")
    with (
        worker(runtime, directory, *options, pipelines=HANDLERS) as ours,
        worker(runtime, directory, *options, "-Q", nothing.QUEUE, app="benchmarks.nothing") as bare,
    ):
        meter = _Meter(runtime, ours)
        wait_until(lambda: runtime.redis.exists(Keys().tailing(INVOICES)), "the ticker starts", 60)
        sizes: dict[int, int] = {1: tenants, BURST: max(1, tenants // 2), records: max(1, tenants // 100)}
        subjects: dict[str, Callable[[], Cost]] = {
            f"run, {counted(size)}": partial(_drain, runtime, meter, many, size) for size, many in sizes.items()
        }
        subjects[END] = partial(_linger, runtime, meter, tenants)
        subjects[TASK] = partial(_drain_tasks, runtime, _Meter(runtime, bare), tenants)
        for name, subject in subjects.items():
            if name != END:
                subject()
        found = interleaved(subjects, rounds)
        found[IDLE] = [meter.cost(lambda: time.sleep(IDLE_SECONDS), IDLE_SECONDS)]
    return {name: medians(costs) for name, costs in found.items()}


def _without_events(runs: Mapping[str, Cost], units: Mapping[str, Cost]) -> dict[str, Cost]:
    """Return what workers do, without the event or the message that it began with, and without waiting for its end."""
    begins = {TASK: units[MESSAGE], **dict.fromkeys((IDLE, END), scaled(units[FIRST], 0))}
    return {name: {**minus(cost, begins.get(name, units[FIRST])), "producer": 0.0} for name, cost in runs.items()}


def _drain(runtime: Runtime, meter: _Meter, tenants: int, records: int, lease_ms: int = 0) -> Cost:
    """Give `tenants` as many `records` each, notify each once, and return what that cost for each."""
    names = [f"drain-{at}" for at in range(tenants)]
    with runtime.engine.begin() as connection:
        connection.exec_driver_sql("TRUNCATE taskbridge.records")
        connection.exec_driver_sql(
            "INSERT INTO taskbridge.records (source, tenant, key, document) SELECT 'invoices', tenant, "
            "n::text, %(document)s::jsonb "
            "FROM unnest(%(names)s::text[]) tenant, generate_series(1, %(records)s) n",
            {"names": names, "records": records, "document": json.dumps(DOCUMENT)},
        )
        connection.exec_driver_sql("ANALYZE taskbridge.records")
    events = [(INVOICES, name, Spacing(delay=50, lease=lease_ms)) for name in names]

    def work() -> None:
        runtime.gate.notify_many(events)
        wait_until(lambda: not runtime.redis.zcard(Keys().due(INVOICES)), "the end of all runs", 600)

    return meter.cost(work, tenants)


def _linger(runtime: Runtime, meter: _Meter, tenants: int) -> Cost:
    """Return what the end of a lease costs: the ticker deletes the runner, and starts no run."""
    once = _drain(runtime, meter, tenants, 1)
    return minus(_drain(runtime, meter, tenants, 1, lease_ms=300 + LEASE_MS_PER_TENANT * tenants), once)


def _drain_tasks(runtime: Runtime, meter: _Meter, count: int) -> Cost:
    """Let the worker of the plain app run `count` tasks that do nothing."""
    app = nothing.make_app(runtime.settings.redis_url)

    def work() -> None:
        for at in range(count):
            app.tasks[nothing.NOTHING].delay(f"tenant-{at}")
        wait_until(
            lambda: not runtime.redis.llen(nothing.QUEUE) and not runtime.redis.hlen("unacked"), "all tasks", 600
        )

    try:
        return meter.cost(work, count)
    finally:
        app.close()


class _Meter:
    """CPU time of the servers, this process, and one worker with its pool."""

    def __init__(self, runtime: Runtime, pid: int | None = None) -> None:
        self._cpu = Cpu(runtime, {} if pid is None else {"worker": [pid]})

    def cost(self, work: Callable[[], object], count: float) -> Cost:
        """Return the microseconds that `work` cost, by who spent them, for each of `count`."""
        before = self._seconds()
        work()
        after = self._seconds()
        return scaled(minus(after, before), 1e6 / count)

    def _seconds(self) -> dict[str, float]:
        found = self._cpu.seconds()
        return {
            "Redis": found["redis"],
            "Postgres": found["postgres"],
            "worker main": found.get("worker main", 0.0),
            "worker pool": found.get("worker children", 0.0),
            "producer": found["producer"],
        }


def _write_each(runtime: Runtime, tenants: Sequence[str]) -> None:
    for at, tenant in enumerate(tenants):
        record_invoice(runtime.engine, tenant, f"{at}-{time.monotonic_ns()}", DOCUMENT)


def _write_together(runtime: Runtime, tenants: Sequence[str]) -> None:
    for start in range(0, len(tenants), PER_TRANSACTION):
        with runtime.engine.begin() as connection:
            for at, tenant in enumerate(tenants[start : start + PER_TRANSACTION]):
                record_invoice(runtime.engine, tenant, f"{at}-{time.monotonic_ns()}", DOCUMENT, connection)


def _unit_costs(units: Mapping[str, Cost], rounds: int) -> Table:
    return Table(
        "CPU time of one, µs",
        ("", *WHO),
        [(name, *(cost[who] for who in WHO)) for name, cost in units.items()],
        f"User and system time, medians of {rounds} rounds; Postgres is all its processes, a worker its main process "
        f"and one of its pool. The handler does nothing: add what yours costs. The {RECORD} is the difference of the "
        "runs with the most records and with one, per record. Runs and the task stand there without the event or the "
        "message that they began with.",
    )


def _headlines(units: Mapping[str, Cost], burst: Load) -> list[Headline]:
    celery = plus(units[MESSAGE], units[TASK])
    return [
        Headline(
            "CPU of Redis, µs per absorbed event", units[ABSORBED]["Redis"], "a Celery message", units[MESSAGE]["Redis"]
        ),
        Headline(
            f"CPU of a worker, µs per record in bursts of {burst.records}",
            workers(burst.cost) / burst.records,
            "a Celery task that does nothing",
            workers(celery),
        ),
    ]


CAPACITY: Final = Benchmark(
    "capacity",
    "What servers and workers carry.",
    "Measure what an event, a run and a record cost Redis, Postgres, workers and producers in CPU time, and put "
    "together what one Redis, one Postgres and some workers carry of three loads, and which is full first. The "
    "baselines are a bare SET, a Celery message and a Celery task that does nothing. Target: the formula for a run of "
    "a burst agrees with a measured one.",
    _measure,
    (
        Option("events", 10_000, 10, 1_000_000, "Events of each kind in a round."),
        Option("tenants", 500, 2, 100_000, "Tenants whose runs are measured in a round."),
        Option("records", 10_000, 100, 1_000_000, "Records of an import."),
        Option("rounds", 3, 1, 100, "Rounds."),
        Option("postgres_cores", 4, 1, 1_000, "Cores of Postgres, on paper."),
        Option("worker_cores", 8, 1, 100_000, "Cores of workers, on paper."),
    ),
    {"events": 100, "tenants": 5, "records": 5_000, "rounds": 1, "postgres_cores": 4, "worker_cores": 8},
)
