"""How soon a key's work goes on after the worker that had it is killed, while another worker lives.

SIGKILL to a worker's process group, main process and pool, in the first batch of each key. From then on every key has
an event per second, as traffic would. TaskBridge and its peers have two workers each, and are killed at the same time.
"""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Final, NamedTuple

from benchmarks.benchmark import Benchmark, Option
from benchmarks.calls import Call, taken_calls
from benchmarks.report import Cell, Report, Table, Target
from benchmarks.stage import stage, wait_until, worker
from benchmarks.subjects import Ours, Subject, Theirs
from taskbridge.errors import ConfigurationError
from taskbridge.process.runtime import Runtime

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["RECOVERY", "Recovered", "recovered"]

OURS: Final = "TaskBridge"
BETWEEN_EVENTS: Final = 1.0
SLACK: Final = 1.0
"""Seconds beyond the runner TTL within which a dead runner is replaced."""
BEATS: Final = 3
"""Heartbeats per runner TTL. The keys begin spread over one of them, so that the crash meets different ones."""


class Recovered(NamedTuple):
    """Seconds from the crash until a key's handler was called again, and until it was with the interrupted record.

    Infinite if it was not. `waiting` is how many records no call since the crash has held.
    """

    next_run: float
    interrupted: float
    waiting: int


def recovered(numbers: Sequence[str], calls: Sequence[Call], crashed: float) -> Recovered:
    """Return what became of a key with the records `numbers`, of which the first was interrupted."""
    later = [call for call in calls if call.started > crashed]
    held = {number for call in later for number in call.numbers}
    return Recovered(
        min((call.started - crashed for call in later), default=math.inf),
        min((call.started - crashed for call in later if numbers[0] in call.numbers), default=math.inf),
        len(set(numbers) - held),
    )


class Key:
    """One tenant of a subject, and the numbers of its records."""

    def __init__(self, subject: Subject, tenant: str) -> None:
        self.tenant: Final = tenant
        self._subject = subject
        self._numbers: list[str] = []

    def send(self) -> None:
        """Send an event, with a record."""
        number = str(len(self._numbers))
        record = self._subject.add(self.tenant, {"number": number})
        self._numbers.append(number)
        self._subject.event(self.tenant, record)

    def recovered(self, calls: Sequence[Call], crashed: float) -> Recovered:
        """Return what became of it, by all `calls`."""
        return recovered(self._numbers, [call for call in calls if call.tenant == self.tenant], crashed)


def _measure(keys: int, cap: float) -> Report:
    """Kill the workers that have `keys` keys of each subject in hand; wait for `cap` seconds at most."""
    if find_spec("celery_once") is None or find_spec("celery_singleton") is None:
        raise ConfigurationError("celery-once and celery-singleton are measured too: run `make .venv/.ready`")
    from benchmarks.peers import open_workplace  # noqa: PLC0415 - an extra

    with stage() as (runtime, directory), ExitStack() as opened:
        place, peers = open_workplace(runtime.settings.redis_url, runtime.settings.postgres_url)
        opened.callback(place.close)
        place.make_table()
        subjects: dict[str, Subject] = {OURS: Ours(runtime)}
        subjects |= {name: Theirs(place, one) for name, one in peers.items()}
        keys_of = {name: [Key(one, f"{name}-{at}") for at in range(keys)] for name, one in subjects.items()}
        each = [key for ones in zip(*keys_of.values(), strict=True) for key in ones]
        with _workers(runtime, directory, keys, len(peers)):
            for key in each:
                key.send()
                time.sleep(runtime.settings.runner_ttl / BEATS / len(each))
            wait_until(lambda: len(taken_calls(runtime.redis)) == len(each), "a batch of each key begins", 60)
            groups = {call.group for call in taken_calls(runtime.redis)}
            with _workers(runtime, directory, keys, len(peers)):
                crashed = time.time()
                for group in groups:
                    os.killpg(group, signal.SIGKILL)
                _go_on(each, crashed + cap)
                calls = taken_calls(runtime.redis)
    found = {name: [key.recovered(calls, crashed) for key in ones] for name, ones in keys_of.items()}
    return _report(found, keys, cap, runtime.settings.runner_ttl + SLACK)


@contextmanager
def _workers(runtime: Runtime, directory: Path, keys: int, peers: int) -> Iterator[None]:
    """Run a worker of TaskBridge and one of the peers, with a slot for each key."""
    with ExitStack() as running:
        slots = ("--concurrency", str(keys))
        running.enter_context(worker(runtime, directory, *slots, pipelines="benchmarks.recovery_handlers"))
        slots = ("--concurrency", str(keys * peers))
        running.enter_context(worker(runtime, directory, *slots, app="benchmarks.peers"))
        yield


def _go_on(keys: Sequence[Key], end: float) -> None:
    """Send an event of every key each second until `end`, and give the last ones a second."""
    due = time.time() + BETWEEN_EVENTS
    while due < end:
        time.sleep(max(0.0, due - time.time()))
        due += BETWEEN_EVENTS
        for key in keys:
            key.send()
    time.sleep(BETWEEN_EVENTS)


def _report(found: Mapping[str, Sequence[Recovered]], keys: int, cap: float, bound: float) -> Report:
    def cells(values: Sequence[float]) -> list[Cell]:
        return [value if value <= cap else f"not within {cap:g} s" for value in (median(values), max(values))]

    rows = [
        [
            name,
            *cells([one.next_run for one in ones]),
            *cells([one.interrupted for one in ones]),
            sum(one.waiting for one in ones) / len(ones),
        ]
        for name, ones in found.items()
    ]
    columns = (
        "",
        "next run of the key, median s",
        "longest s",
        "interrupted record, median s",
        "longest s",
        "records waiting at the end, per key",
    )
    return Report(
        {"keys": keys, "cap": cap},
        [Table("After SIGKILL in mid-batch", columns, rows, NOTE)],
        [
            Target(f"{what}, longest, s, against the runner TTL and {SLACK:g} s", min(longest, cap), bound)
            for what, longest in (
                ("next run", max(one.next_run for one in found[OURS])),
                ("interrupted record", max(one.interrupted for one in found[OURS])),
            )
        ],
    )


NOTE: Final = (
    "Counted until the handler is called. One second after the crash and every second from then on each key has an "
    "event. A job of celery-once or celery-singleton would take all records of its key. With acks_late a job takes its "
    "own record only: that of the next event runs as soon as it comes, and the interrupted one comes back after the "
    "visibility timeout, one hour by default."
)

RECOVERY: Final = Benchmark(
    "recovery",
    "How soon work goes on after a worker is killed.",
    "Measure how soon the work of a key goes on after SIGKILL of the worker that had it in hand, while another lives. "
    "The baselines are celery-once, celery-singleton and Celery with acks_late, at their defaults.",
    _measure,
    (
        Option("keys", 3, 1, 16, "Keys of each that are in hand."),
        # A shorter cap could not tell whether the bound is kept.
        Option("cap", 60.0, 7, 3_600, "Seconds after which nobody waits any more."),
    ),
    {"keys": 1, "cap": 7.0},
)
