"""Latency-neutral batching beside the usual patterns: how long first and last events wait, and how many jobs run.

One producer sends single events, bursts, and bursts to a handler that is over before the next event comes, to each
strategy in turn. The strategies have one worker and TaskBridge has another, with as many slots.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import count
from statistics import median
from typing import Final, NamedTuple

from benchmarks.benchmark import Benchmark, Option
from benchmarks.calls import Delays, Event, delays, forget_calls, taken_calls
from benchmarks.report import Cell, Report, Table, Target
from benchmarks.rounds import interleaved, median_ratio, summary
from benchmarks.stage import stage, wait_until, worker
from benchmarks.strategies import open_workplace
from benchmarks.subjects import Ours, Subject, Theirs, Work
from taskbridge.declaring.policy import LatencyNeutral
from taskbridge.process.runtime import Runtime

__all__ = ["PATTERNS"]

OURS: Final = "TaskBridge"
BASELINE: Final = "one job per event"
TICK_MS: Final = LatencyNeutral().tick * 1000
BURST_SECONDS: Final = 0.2
BETWEEN_SINGLES: Final = 0.05
BETWEEN_PAIR: Final = 0.01
SLOW: Final = 0.02
FAST: Final = 0.001
SLOTS: Final = 2


class Round(NamedTuple):
    """What one round of one subject gave: the delays of each tenant, the work, and records that stayed pending."""

    found: Sequence[Delays]
    work: Work
    lost: int
    seconds: float

    @property
    def first(self) -> list[float]:
        """How long the first events waited, in milliseconds."""
        return [one.first for one in self.found if one.first is not None]

    @property
    def last(self) -> list[float]:
        """How long the last events waited until they were covered, in milliseconds."""
        return [one.last for one in self.found if one.last is not None]


def _measure(rounds: int, events: int, singles: int) -> Report:
    """Measure `rounds` times `singles` single events, a pair, and one burst of `events` with each handler."""
    with stage() as (runtime, directory), ExitStack() as opened:
        place, strategies = open_workplace(runtime.settings.redis_url, runtime.settings.postgres_url)
        opened.callback(place.close)
        place.make_table()
        subjects: dict[str, Subject] = {name: Theirs(place, one) for name, one in strategies.items()}
        subjects[OURS] = Ours(runtime)
        options = (
            "--concurrency",
            str(SLOTS),
            *(("--task-events",) if runtime.app.conf.worker_send_task_events else ()),
        )
        with (
            worker(runtime, directory, *options, app="benchmarks.strategies"),
            worker(runtime, directory, *options, pipelines="benchmarks.pattern_handlers"),
        ):
            measured = partial(_rounds, runtime, subjects)
            measured("warm", 1, tenants=SLOTS, events=1, gap=0.0, seconds=SLOW)
            gap = BURST_SECONDS / events
            single = measured("single", rounds, tenants=singles, events=1, gap=BETWEEN_SINGLES, seconds=SLOW)
            pair = measured("pair", rounds, tenants=1, events=2, gap=BETWEEN_PAIR, seconds=SLOW)
            burst = measured("burst", rounds, tenants=1, events=events, gap=gap, seconds=SLOW)
            fast = measured("fast", rounds, tenants=1, events=events, gap=gap, seconds=FAST)
    in_time = f"{events} events in {BURST_SECONDS * 1000:g} ms"
    return Report(
        {"rounds": rounds, "events": events, "singles": singles},
        [
            _singles(single),
            _burst(f"Two events, {BETWEEN_PAIR * 1000:g} ms apart", pair, PAIR_NOTE),
            _burst(f"{in_time}, a handler of {SLOW * 1000:g} ms", burst, BURST_NOTE),
            _burst(f"{in_time}, a handler of {FAST * 1000:g} ms", fast, FAST_NOTE),
        ],
        _targets(single, pair, burst, fast),
    )


def _rounds(
    runtime: Runtime,
    subjects: Mapping[str, Subject],
    prefix: str,
    rounds: int,
    *,
    tenants: int,
    events: int,
    gap: float,
    seconds: float,
) -> dict[str, list[Round]]:
    """Measure every subject in each round, with tenants that nobody had before."""
    numbered = count()

    def one(subject: Subject) -> Round:
        names = [f"{prefix}-{next(numbered)}" for _ in range(tenants)]
        return _round(runtime, subject, names, events, gap, seconds)

    return interleaved({name: partial(one, subject) for name, subject in subjects.items()}, rounds)


def _round(
    runtime: Runtime, subject: Subject, tenants: Sequence[str], events: int, gap: float, seconds: float
) -> Round:
    """Send each tenant its events, every `gap` seconds one, and wait until all is over."""
    forget_calls(runtime.redis)
    subject.begin()
    before = subject.pending()
    sent: dict[str, list[Event]] = {tenant: [] for tenant in tenants}
    due = time.time()
    for tenant in tenants:
        for at in range(events):
            time.sleep(max(0.0, due - time.time()))
            due += gap
            record = subject.add(tenant, {"number": str(at), "seconds": seconds})
            sent[tenant].append(Event(str(at), time.time()))
            subject.event(tenant, record)
    seconds_sent = sent[tenants[-1]][-1].at - sent[tenants[0]][0].at
    wait_until(lambda: subject.is_quiet(tenants), f"the jobs of {tenants[0]} end", 60)
    calls = taken_calls(runtime.redis)
    found = [delays(sent[tenant], [call for call in calls if call.tenant == tenant]) for tenant in tenants]
    return Round(found, subject.work(tenants, len(calls)), subject.pending() - before, seconds_sent)


WAITS: Final = ("first event", "last event covered")

SINGLES_NOTE: Final = (
    f"An event of another tenant every {BETWEEN_SINGLES * 1000:g} ms; the handler takes {SLOW * 1000:g} ms, and "
    f"{SLOTS} jobs run at a time. The published loop keeps its slot for as long as the lease lives, so later tenants "
    "wait for one; in the other tables it has both to itself."
)
PAIR_NOTE: Final = "The second event comes soon after the first job has read, so that it waits for nearly a whole tick."
BURST_NOTE: Final = (
    "A sweep reads what is pending and calls the handler once if it finds records. Jobs of the debounce that are not "
    "the last read nothing. The burst ends just before a tick of TaskBridge; where its producer fell behind, the next "
    "tick takes the rest. Jobs and sweeps are means per burst."
)
FAST_NOTE: Final = "The handler is over before the next event comes, so that the queue is never deep."


def _singles(found: Mapping[str, Sequence[Round]]) -> Table:
    rows: list[list[Cell]] = [
        [name, *summary(_flat(one.first for one in rounds)), *_work(rounds)] for name, rounds in found.items()
    ]
    return Table(
        "Single events",
        ("", "first event, median ms", "p99 ms", "longest ms", *_work_columns("event")),
        rows,
        SINGLES_NOTE,
    )


def _burst(title: str, found: Mapping[str, Sequence[Round]], note: str) -> Table:
    columns = ("", "sent in, longest ms", *(f"{what}, {of} ms" for what in WAITS for of in ("median", "longest")))
    rows: list[list[Cell]] = [
        [
            name,
            max(one.seconds for one in rounds) * 1000,
            *_middle(one.first for one in rounds),
            *_middle(one.last for one in rounds),
            *_work(rounds),
        ]
        for name, rounds in found.items()
    ]
    return Table(title, (*columns, *_work_columns("burst")), rows, note)


def _middle(groups: Iterable[Sequence[float]]) -> tuple[Cell, Cell]:
    """Return median and maximum, or that nothing was covered."""
    values = _flat(groups)
    return (median(values), max(values)) if values else ("never", "never")


def _work_columns(per: str) -> tuple[str, ...]:
    return (f"jobs per {per}", "sweeps with records", "sweeps without", "records lost")


def _work(rounds: Sequence[Round]) -> list[float]:
    """Return the work of a tenant on average, and the records that were lost in all."""
    tenants = sum(len(one.found) for one in rounds)
    work = [sum(one.work[at] for one in rounds) / tenants for at in range(len(Work._fields))]
    return [*work, sum(one.lost for one in rounds)]


def _targets(single: Mapping[str, Sequence[Round]], *bursts: Mapping[str, Sequence[Round]]) -> list[Target]:
    """Compare ours with the baseline's first events, and with what the tick promises; `bursts` are pairs and bursts."""
    ours, baseline = ([median(one.first) for one in single[name]] for name in (OURS, BASELINE))
    all_ours = [one for burst in bursts for one in burst[OURS]]
    return [
        Target("first event, ratio to one job per event", median_ratio(ours, baseline), 1),
        Target("runs with records per burst, most", max(one.work.with_records for one in all_ours), 2),
        Target("runs without records per burst, most", max(one.work.without for one in all_ours), 0),
        Target(
            "last event covered, longest, ms, against tick and handler",
            max(_flat(one.last for one in all_ours)),
            TICK_MS + SLOW * 1000,
        ),
        Target("records lost", sum(one.lost for one in [*single[OURS], *all_ours]), 0),
    ]


def _flat(groups: Iterable[Sequence[float]]) -> list[float]:
    return [value for group in groups for value in group]


PATTERNS: Final = Benchmark(
    "patterns",
    "First events, last events and jobs beside the usual patterns.",
    "Measure how long the first and the last event of single events and of bursts wait, how many jobs they cost, and "
    "what is lost. The baselines are a job per event, a debounce, a fixed window, batching by the depth of the queue, "
    "and the published loop that sleeps in the worker.",
    _measure,
    (
        Option("rounds", 4, 1, 1_000, "Rounds of single events and of each burst."),
        Option("events", 50, 2, 10_000, "Events of a burst."),
        Option("singles", 8, 2, 10_000, "Single events of a round."),
    ),
    {"rounds": 1, "events": 3, "singles": 2},
)
