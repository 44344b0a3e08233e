"""What tenants in their lease cost while nothing is due, how late their ticks are, and what an absorbed event costs.

The tenants are brought there by the gate's own scripts: an event, a run that begins, a run that settles, and one event
more. Those are due one after another over an interval; the worker's ticker then publishes a run.
The worker serves no queue, so that what is measured is waiting and not how many runs a machine gets done. The
baseline is a Celery worker that holds one task with a countdown for each tenant.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple, Protocol

from benchmarks import countdown
from benchmarks.benchmark import Benchmark, Option
from benchmarks.cpu import process, seconds_of
from benchmarks.queued import run_in
from benchmarks.report import Plot, Report, Table, Target
from benchmarks.rounds import decades, interleaved, slope, summary
from benchmarks.stage import stage, wait_until, worker
from taskbridge.common.run_key import RunKey
from taskbridge.declaring.pipeline import INVOICES
from taskbridge.declaring.policy import LatencyNeutral, Spacing
from taskbridge.gate import Answer, Gate, Outcome, Queue, Settlement
from taskbridge.process.runtime import Runtime

__all__ = ["TENANTS"]

POLICY: Final = LatencyNeutral()
CHUNK: Final = 500
TAKE_EACH: Final = 0.02
SMALLEST: Final = 1_000
MOST_DUE: Final = 10_000
LONG: Final = 3_000.0
"""Seconds that nobody's lease ends in."""
EVENTS: Final = (1, 10, 100, 1_000)
ALL_EVENTS: Final = 3_000
SHORT: Final = Spacing(delay=POLICY.spacing.delay, lease=400)


class _Cost(NamedTuple):
    """The share of a core that Redis and the worker's main process used over some seconds."""

    redis: float
    worker: float

    @property
    def both(self) -> float:
        """Of both together."""
        return self.redis + self.worker


class _Waiting(NamedTuple):
    """What waiting costs; `idle`, `redis_bytes` and `worker_bytes` tell it from nobody just before. `late` is in ms."""

    idle: _Cost
    lingering: _Cost
    redis_bytes: int
    worker_bytes: int
    due: _Cost | None = None
    late: Sequence[float] = ()

    @property
    def ratio(self) -> float:
        """CPU while they wait against that with nobody."""
        return self.lingering.both / self.idle.both


class _Subject(Protocol):
    """A way to let tenants wait; `seconds_per_tenant` is more than enough to bring one there."""

    seconds_per_tenant: float

    def serve(self) -> AbstractContextManager[int]:
        """Run its worker; give its process id."""

    def wait(self, due: Sequence[float]) -> None:
        """Let a tenant wait until each of these times, in seconds of the Unix epoch; return when all do."""

    def take(self) -> None:
        """Take what was published so far."""

    def lateness(self, count: int) -> list[float]:
        """Return in ms how late each of `count` ticks was, once all are there."""


def _published(client: Any, queue: Queue, most: int) -> list[tuple[str, str]]:
    """Take up to `most` run messages; return tenant and token of each of their runs."""
    return [run_in(text) for text in client.rpop(queue.value, most) or ()]


def _run(runtime: Runtime) -> list[str]:
    """Take all first runs, let them begin and settle, and return the tenants that then linger."""
    gate, lingering = runtime.gate, list[str]()
    end = Settlement(Outcome.DONE, handled=1)
    while published := _published(runtime.redis, Queue.FIRST, CHUNK):
        runs = [RunKey(INVOICES, *run) for run in published]
        begun = gate.begin_many([(run, 0) for run in runs])
        settled = gate.settle_many([(run, end, POLICY.spacing, 0) for run in runs])
        if Answer.REFUSED in begun or not set(settled) <= {Answer.LINGERING, Answer.FINISHED}:
            raise AssertionError(f"of {len(runs)} runs {begun.count(Answer.REFUSED)} were refused; {set(settled)}")
        lingering += [run.tenant for run, answer in zip(runs, settled, strict=True) if answer is Answer.LINGERING]
    return lingering


class _Ours:
    """Tenants with an event in their lease whose delay ends when they are due."""

    seconds_per_tenant = 0.0003

    def __init__(self, runtime: Runtime, directory: Path) -> None:
        self._runtime = runtime
        self._directory = directory
        self._due: dict[str, int] = {}
        self._late: list[float] = []

    def serve(self) -> AbstractContextManager[int]:
        return worker(self._runtime, self._directory, "-c", "1", "-Q", "taskbridge.nobody")

    def wait(self, due: Sequence[float]) -> None:
        gate, self._due, self._late = self._runtime.gate, {}, []
        for start in range(0, len(due), CHUNK):
            now = time.time()
            left = {f"tenant-{at}": max(1, round((due[at] - now) * 1000)) for at in range(start, len(due))[:CHUNK]}
            events = [(INVOICES, tenant, Spacing(ms, ms)) for tenant, ms in left.items()]
            gate.notify_many(events)
            tenants = _run(self._runtime)
            if gate.notify_many(events).count(Answer.DELAYED) != len(tenants):
                raise AssertionError(f"of {len(events)} tenants some do not wait")
            found = zip(tenants, gate.look(INVOICES, tenants), strict=True)
            self._due |= {tenant: status.deadline_ms or 0 for tenant, status in found}

    def take(self) -> None:
        # As workers would: a ticker adds nothing while many runs are published and not begun.
        runs = _published(self._runtime.redis, Queue.NEXT, 1_000)
        if runs:
            self._runtime.redis.zrem(self._runtime.keys.in_flight_due(INVOICES), *(tenant for tenant, _ in runs))
        self._late += [int(token[:16]) / 1000 - self._due[tenant] for tenant, token in runs]

    def lateness(self, count: int) -> list[float]:
        def all_published() -> bool:
            self.take()
            return len(self._late) == count

        wait_until(all_published, f"{count} runs are published", 60)
        return self._late


class _Countdowns:
    """A Celery task with a countdown for each tenant."""

    seconds_per_tenant = 0.0012

    def __init__(self, runtime: Runtime, directory: Path) -> None:
        self._runtime = runtime
        self._directory = directory
        self._file = directory / "lateness"

    def serve(self) -> AbstractContextManager[int]:
        options = {"TASKBRIDGE_BENCH_LATENESS": str(self._file)}
        return worker(self._runtime, self._directory, "-c", "1", app=countdown.__name__, **options)

    def wait(self, due: Sequence[float]) -> None:
        self._file.write_bytes(b"")
        with countdown.app.connection_for_write(self._runtime.settings.redis_url) as connection:
            producer = connection.Producer()
            for at, moment in enumerate(due):
                countdown.tick.apply_async((f"tenant-{at}", moment), countdown=moment - time.time(), producer=producer)
        wait_until(lambda: self._runtime.redis.hlen("unacked") >= len(due), "the worker holds all tasks", 60)

    def take(self) -> None:
        """The worker takes them itself."""

    def lateness(self, count: int) -> list[float]:
        wait_until(lambda: self._file.read_bytes().count(b"\n") == count, f"{count} tasks are handed to the pool", 60)
        return [float(line) for line in self._file.read_text().split()]


def _measure(tenants: int, seconds: float, rounds: int) -> Report:
    """Let up to `tenants` linger, and up to 10,000 come due over `seconds`; then measure bursts of events."""
    sizes = decades(SMALLEST, tenants)
    due = [size for size in sizes if size <= MOST_DUE]
    # Nobody begins the runs, and none may be published twice.
    with stage(republish_after=3600) as (runtime, directory):
        ours, countdowns = _Ours(runtime, directory), _Countdowns(runtime, directory)
        found = interleaved(
            {
                "taskbridge": lambda: _episode(runtime, ours, sizes, seconds),
                "countdown tasks": lambda: _episode(runtime, countdowns, due, seconds),
            },
            rounds,
        )
        bursts = interleaved({str(events): _burst_of(runtime, events) for events in EVENTS}, rounds)
    return _report(
        {"tenants": tenants, "seconds": seconds, "rounds": rounds},
        {name: _medians(episodes) for name, episodes in found.items()},
        {events: _Burst(*map(median, zip(*bursts[str(events)], strict=True))) for events in EVENTS},
    )


def _episode(runtime: Runtime, subject: _Subject, sizes: Sequence[int], seconds: float) -> dict[int, _Waiting]:
    """Return what waiting costs by number of tenants, in one worker."""
    with subject.serve() as pid:
        time.sleep(min(1.0, seconds))
        return {size: _wait(runtime, pid, subject, size, seconds) for size in sizes}


def _wait(runtime: Runtime, pid: int, subject: _Subject, size: int, seconds: float) -> _Waiting:
    runtime.redis.flushdb()
    idle, before = _cost(runtime, pid, seconds), _memory(runtime, pid)
    is_due = size <= MOST_DUE
    first = time.time() + (size * subject.seconds_per_tenant + seconds + 0.5 if is_due else LONG)
    subject.wait([first + at * seconds / size for at in range(size)])
    if time.time() + seconds > first:
        raise TimeoutError(f"{size:,} tenants were not made to wait in time: measure fewer")
    lingering = _cost(runtime, pid, seconds)
    redis_bytes, worker_bytes = (now - then for now, then in zip(_memory(runtime, pid), before, strict=True))
    waiting = _Waiting(idle, lingering, redis_bytes, worker_bytes)
    if not is_due:
        return waiting
    time.sleep(max(0.0, first - time.time()))
    return waiting._replace(due=_cost(runtime, pid, seconds, subject.take), late=subject.lateness(size))


def _cost(runtime: Runtime, pid: int, seconds: float, meanwhile: Callable[[], object] = int) -> _Cost:
    before, started = _cpu(runtime, pid), time.monotonic()
    while (left := started + seconds - time.monotonic()) > 0:
        meanwhile()
        time.sleep(min(left, TAKE_EACH))
    after, passed = _cpu(runtime, pid), time.monotonic() - started
    return _Cost(*((then - now) / passed for now, then in zip(before, after, strict=True)))


def _cpu(runtime: Runtime, pid: int) -> tuple[float, float]:
    """Return the seconds of CPU that Redis and a process have used."""
    used: Any = runtime.redis.info("cpu")
    return used["used_cpu_sys"] + used["used_cpu_user"], seconds_of(process(pid))


def _memory(runtime: Runtime, pid: int) -> tuple[int, int]:
    """Return the bytes that Redis and a process use."""
    used: Any = runtime.redis.info("memory")
    return used["used_memory"], process(pid).memory_info().rss


def _medians(episodes: Sequence[dict[int, _Waiting]]) -> dict[int, _Waiting]:
    """Return the medians of all rounds, with the lateness of all ticks."""
    return {
        size: _Waiting(
            _median_cost(one[size].idle for one in episodes),
            _median_cost(one[size].lingering for one in episodes),
            round(median(one[size].redis_bytes for one in episodes)),
            round(median(one[size].worker_bytes for one in episodes)),
            _median_cost(due) if (due := [cost for one in episodes if (cost := one[size].due)]) else None,
            [late for one in episodes for late in one[size].late],
        )
        for size in episodes[0]
    }


def _median_cost(costs: Iterable[_Cost]) -> _Cost:
    return _Cost(*map(median, zip(*costs, strict=True)))


class _Burst(NamedTuple):
    """Of one burst: microseconds of Redis's CPU, and runs."""

    us: float
    runs: float


def _burst_of(runtime: Runtime, events: int) -> Callable[[], _Burst]:
    """Return what measures bursts of so many events, each of which comes before the tenant's first run begins."""
    tenants = [f"burst-{at}" for at in range(max(1, ALL_EVENTS // events))]

    def measure() -> _Burst:
        gate = runtime.gate
        runtime.redis.flushdb()
        gate.notify_many([(INVOICES, tenants[0], SHORT)])  # so that the scripts are there
        runtime.redis.flushdb()
        before: Any = runtime.redis.info("cpu")
        published = _notify(gate, [name for name in tenants for _ in range(events)])
        lingering = _run(runtime)
        time.sleep(SHORT.lease / 1000)
        gate.expire(INVOICES, lingering)
        after: Any = runtime.redis.info("cpu")
        us = sum(after[name] - before[name] for name in ("used_cpu_sys", "used_cpu_user")) * 1e6
        return _Burst(us / len(tenants), published / len(tenants))

    return measure


def _notify(gate: Gate, tenants: Sequence[str]) -> int:
    """Notify in round trips of some hundred; return how many runs that published."""
    answers: list[Answer] = []
    for at in range(0, len(tenants), CHUNK):
        answers += gate.notify_many([(INVOICES, name, SHORT) for name in tenants[at : at + CHUNK]])
    return answers.count(Answer.STARTED)


def _report(parameters: dict[str, float], waiting: dict[str, dict[int, _Waiting]], bursts: dict[int, _Burst]) -> Report:
    ours = waiting["taskbridge"]
    largest = max(ours)
    timed = summary(ours[max(size for size in ours if ours[size].late)].late)
    points = {events: burst.us for events, burst in bursts.items()}
    series = {
        name: [(size, one.lingering.both * 100) for size, one in found.items()] for name, found in waiting.items()
    }
    memory = {name: [(size, one.redis_bytes / 1e6) for size, one in found.items()] for name, found in waiting.items()}
    return Report(
        parameters,
        [_costs(waiting, series), _ticks(waiting, parameters["seconds"]), _events(bursts)],
        [
            Target("p99 of lateness, ms", timed.p99, 50),
            Target(f"bytes of Redis for each of {largest:,} tenants", ours[largest].redis_bytes / largest, 500),
            Target(
                f"CPU while {largest:,} linger, ratio to nobody",
                ours[largest].ratio,
                1.2,
            ),
        ],
        [
            Plot("CPU while tenants linger", "tenants", "% of a core, Redis and worker", series, logarithmic=True),
            Plot("Redis memory", "tenants", "MB", memory, logarithmic=True),
            Plot("Redis CPU of one burst", "events", "µs", {"one burst": [*points.items()]}, logarithmic=True),
        ],
    )


def _costs(waiting: dict[str, dict[int, _Waiting]], series: dict[str, list[tuple[int, float]]]) -> Table:
    rows = [
        (
            f"{name}, {size:,}",
            one.lingering.redis * 100,
            one.lingering.worker * 100,
            one.idle.both * 100,
            one.ratio,
            one.redis_bytes / size,
            one.worker_bytes / size,
        )
        for name, found in waiting.items()
        for size, one in found.items()
    ]
    slopes = ", ".join(f"{name} {slope(points):.2g}" for name, points in series.items())
    return Table(
        "Tenants that wait while nothing is due",
        (
            "",
            "Redis, % of a core",
            "worker, %",
            "both with nobody, %",
            "ratio",
            "Redis, bytes each",
            "worker, bytes each",
        ),
        rows,
        f"The worker is its main process. CPU of both grows with tenants by the exponent: {slopes}.",
    )


def _ticks(waiting: dict[str, dict[int, _Waiting]], seconds: float) -> Table:
    return Table(
        f"Tenants that are due one after another, each once in {seconds:g} s",
        ("", "late, median ms", "p99 ms", "longest ms", "Redis, % of a core", "worker, % of a core"),
        [
            (f"{name}, {size:,}", *summary(one.late), one.due.redis * 100, one.due.worker * 100)
            for name, found in waiting.items()
            for size, one in found.items()
            if one.due is not None
        ],
        "Ours: until the run's message is published, and the CPU for that. A countdown: until its task is handed to "
        "the pool, and the CPU for that. What then runs is not part of either.",
    )


def _events(bursts: dict[int, _Burst]) -> Table:
    exponent = slope([(events, burst.us) for events, burst in bursts.items()])
    return Table(
        "Bursts of events that come before the first run begins",
        ("events", "runs", "Redis CPU, µs", "µs for each event"),
        [(f"{events:,}", burst.runs, burst.us, burst.us / events) for events, burst in bursts.items()],
        f"Of one burst, with its run and the end of its lease. It grows with events by the exponent {exponent:.2g}.",
    )


TENANTS: Final = Benchmark(
    "tenants",
    "What very many tenants in their lease cost.",
    "Measure what tenants in their lease cost while nothing is due (CPU of Redis and of the worker's main process, and "
    "memory), how late their ticks are, and what a burst costs as its events grow. The baselines are the same worker "
    "while nobody waits, and a Celery worker that holds a task with a countdown for each of up to 10,000 tenants. "
    "Targets: ticks at most 50 ms late (p99), 500 bytes of Redis for each tenant, 1.2 times the CPU of nobody.",
    _measure,
    (
        Option("tenants", 100_000, 200, 1_000_000, "Most tenants; measured from 1,000 on, ten times more each."),
        Option("seconds", 4.0, 0.1, 60, "Span of each measurement, over which up to 10,000 tenants come due."),
        Option("rounds", 1, 1, 100, "How often each is measured."),
    ),
    {"tenants": 200, "seconds": 0.2, "rounds": 1},
    page={"rounds": 2},
)
