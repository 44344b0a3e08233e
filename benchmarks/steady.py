"""How many first events a second there may be until they wait: new tenants at one steady rate after another."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
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
            p99 = _p99(file, send, rate, seconds)
            if p99 > LONGEST_MS:
                del left[name]
            else:
                borne[name] = Borne(rate, p99)
        rate *= FASTER
    return Table(
        f"First events at a steady rate, until p99 passes {LONGEST_MS:g} ms",
        ("", "events/s", "p99 ms", f"ratio of {ours} to it"),
        [(name, one.rate, one.p99, borne[ours].rate / one.rate if one.rate else 0) for name, one in borne.items()],
        f"From the time when an event is due to the handler's call with its record; {seconds:g} s of each rate, each "
        f"{FASTER:g} times the one before. One process writes the records and sends the events.",
    )


def _p99(file: Path, send: Send, rate: float, seconds: float) -> float:
    """Send events of new tenants at a rate, and return the 99th percentile of their milliseconds."""
    prefix, marks, count = secrets.token_hex(4), Marks(file), max(2, round(rate * seconds))
    first = marks.count()
    began = time.time()
    due = [began + at / rate for at in range(count)]
    for at, moment in enumerate(due):
        time.sleep(max(0.0, moment - time.time()))
        send(f"{prefix}-{at}")
    wait_until(lambda: marks.count() - first >= count, f"{count} events are handled", WAITS)
    called = sorted(marks.since(first))
    return summary([(at - moment) * 1000 for at, moment in zip(called, due, strict=False)]).p99
