"""How many first events a second there may be until they wait: new tenants at one steady rate after another."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.marks import Marks
from benchmarks.report import Table
from benchmarks.rounds import summary
from benchmarks.stage import wait_until

__all__ = ["Send", "steady"]

LONGEST_MS: Final = 100.0
SLOWEST: Final = 40.0
FASTER: Final = 1.25
SENDERS: Final = 4
"""Threads that send. One alone would wait for each of its commits, and send its events too late."""
TRIES: Final = 3
"""A rate is borne if it is in one of so many tries: one pause of a shared machine spoils a whole try."""
WAITS: Final = 120.0
"""Seconds after which the rest of a rate's events must have been handled."""

Send = Callable[[str], object]
"""Writes the record of a tenant and sends its event."""


class Borne(NamedTuple):
    """The highest rate so far whose events did not wait, in events/s, and their p99 in milliseconds."""

    rate: float
    p99: float


def steady(file: Path, subjects: Mapping[str, Send], ours: str, seconds: float) -> Table:
    """Return for each subject the highest rate, over so many seconds, at which 99 of 100 events did not wait."""
    borne = dict.fromkeys(subjects, Borne(0.0, 0.0))
    left, rate = dict(subjects), SLOWEST
    while left:
        for name, send in list(left.items()):
            tries = (_p99(file, send, rate, seconds) for _ in range(TRIES))
            p99 = next((one for one in tries if one <= LONGEST_MS), None)
            if p99 is None:
                del left[name]
            else:
                borne[name] = Borne(rate, p99)
        rate *= FASTER
    return Table(
        f"First events at a steady rate, until p99 passes {LONGEST_MS:g} ms",
        ("", "events/s", "p99 ms", f"ratio of {ours} to it"),
        [(name, one.rate, one.p99, borne[ours].rate / one.rate if one.rate else 0) for name, one in borne.items()],
        f"From the time when an event is due to the handler's call with its record; {seconds:g} s of each rate, each "
        f"{FASTER:g} times the one before, tried up to {TRIES} times. {SENDERS} threads of one process write records "
        "and send events.",
    )


def _p99(file: Path, send: Send, rate: float, seconds: float) -> float:
    """Send events of new tenants at a rate, and return the 99th percentile of their milliseconds."""
    prefix, marks, count = secrets.token_hex(4), Marks(file), max(2, round(rate * seconds))
    first = marks.count()
    began = time.time()
    due = [began + at / rate for at in range(count)]

    def send_some(first_of_them: int) -> None:
        for at in range(first_of_them, count, SENDERS):
            time.sleep(max(0.0, due[at] - time.time()))
            send(f"{prefix}-{at}")

    with ThreadPoolExecutor(SENDERS) as threads:
        list(threads.map(send_some, range(SENDERS)))
    wait_until(lambda: marks.count() - first >= count, f"{count} events are handled", WAITS)
    called = sorted(marks.since(first))
    return summary([(at - moment) * 1000 for at, moment in zip(called, due, strict=False)]).p99
