"""How many records a handler is given at once, learned from how long its calls took.

A call costs something by itself (a request, a transaction) and something for each record. Only calls of different sizes
show which is which, so the last calls are kept by size: one class for each power of two.

Tenants may differ: a handler that does nothing for most of them says nothing about the others. So the calls of a tenant
with a backlog are also kept by themselves, and are what counts once they have different sizes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from itertools import pairwise
from threading import Lock
from typing import Final

__all__ = ["FIRST_CALL", "MOST_BUDGETS", "Pace", "Paces"]

FIRST_CALL: Final = 100
"""Most records of the first call in a process, when nothing is known."""

MOST_BUDGETS: Final = 5
"""A larger call than any before may take this many budgets, if a call costs nothing by itself."""

SHARE_BY_ITSELF: Final = 4
"""The records of a call may take this many times as long as the call by itself: shorter calls would waste a fifth."""

UNBOUNDED: Final = 1 << 30

_KEPT: Final = 3
"""Calls of each size that are remembered. One slow call of three is never the middle one."""

FORGOTTEN_AFTER: Final = 100
"""Calls as large as allowed after which larger ones are forgotten: these may have met a slow minute."""

MOST_TENANTS: Final = 256
"""Tenants with a backlog whose calls are kept by themselves, the last ones."""

_Call = tuple[int, float]


class Paces:
    """What the calls of one pipeline's handler took lately, in this process. Threads may share it."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._all = Pace()
        self._of_tenants: OrderedDict[str, Pace] = OrderedDict()

    @property
    def small_call(self) -> float | None:
        """As `Pace.small_call`, of all tenants."""
        with self._lock:
            return self._all.small_call

    def note_failed(self, seconds: float) -> None:
        """As `Pace.note_failed`."""
        with self._lock:
            self._all.note_failed(seconds)

    def note(self, records: int, seconds: float, backlog_of: str | None = None) -> None:
        """Remember a call with so many records; `backlog_of`: the tenant, if it has more than were allowed."""
        with self._lock:
            self._all.note(records, seconds, is_full=backlog_of is not None)
            if backlog_of is not None:
                own = self._of_tenants.setdefault(backlog_of, Pace())
                self._of_tenants.move_to_end(backlog_of)
                own.note(records, seconds, is_full=True)
                if len(self._of_tenants) > MOST_TENANTS:
                    self._of_tenants.popitem(last=False)

    def most_records(self, latency: float, budget: float, tenant: str) -> int:
        """As `Pace.most_records`, for the next call of a tenant."""
        with self._lock:
            own = self._of_tenants.get(tenant)
            return (own if own is not None and own.knows_two_sizes else self._all).most_records(latency, budget)


class Pace:
    """What some calls took lately. Times are seconds.

    It holds at most three calls for each power of two up to the batch size.
    """

    def __init__(self) -> None:
        self._by_size: dict[int, tuple[_Call, ...]] = {}
        self._failed = 0.0
        self._full_sizes: list[int] = []
        """The sizes of the calls as large as allowed, since one of the largest size."""
        self._has_forgotten = False

    @property
    def knows_two_sizes(self) -> bool:
        """Whether it holds two calls each of sizes that differ by a factor of two or more."""
        known = [_usual(calls)[0] for calls in self._by_size.values() if len(calls) > 1]
        return bool(known) and max(known) >= 2 * min(known)

    def note_failed(self, seconds: float) -> None:
        """Remember how long a call took that failed, until one is done. It says nothing of how many records to give."""
        self._failed = max(self._failed, seconds)

    def note(self, records: int, seconds: float, *, is_full: bool = False) -> None:
        """Remember a call with so many records; `is_full`: it had as many as were allowed."""
        self._failed = 0.0
        size = records.bit_length()
        # The size that was called last is the last one of the dict.
        self._by_size[size] = (*self._by_size.pop(size, ()), (records, max(seconds, 1e-6)))[-_KEPT:]
        if size == max(self._by_size):
            self._full_sizes.clear()
        elif is_full:
            self._full_sizes.append(size)
        if len(self._full_sizes) >= FORGOTTEN_AFTER:
            largest = max(self._full_sizes)
            self._by_size = {size: calls for size, calls in self._by_size.items() if size <= largest}
            self._full_sizes.clear()
            self._has_forgotten = True

    @property
    def small_call(self) -> float | None:
        """How long the slowest took of the last smallest calls, and of those that failed since; None: none is known."""
        sizes = self._by_size
        return max(self._failed, *(seconds for _, seconds in sizes[min(sizes)])) if sizes else None

    def most_records(self, latency: float, budget: float) -> int:
        """Return how many records to deliver at once; at least 1.

        The records prolong the call by at most `latency` seconds, or by four times what the call costs by itself if
        that is longer: a first event that finds every slot busy waits for a call to end. `budget` is that of a run; it
        bounds calls that are larger than any before.
        """
        by_size = list(self._by_size.values())
        if not by_size:
            return FIRST_CALL
        most, longest = max(_usual(calls) for calls in by_size)
        # If a small call already takes longer than it may, most of that is probably the call by itself.
        allowed = MOST_BUDGETS * budget if longest > latency else 2 * latency
        # Calls that are forgotten were slow, so sizes are tried again step by step.
        largest = int(most * (2 if self._has_forgotten else max(2, allowed / longest)))
        return max(1, min(largest, _most_within(latency, by_size)))


def _most_within(latency: float, by_size: Sequence[Sequence[_Call]]) -> int:
    """Return how many records prolong a call by so much.

    One slow call proves nothing, so only sizes with two calls count. Until there are two of those, a slow call is
    repeated with as many records before larger ones are tried.
    """
    known = sorted(_usual(calls) for calls in by_size if len(calls) > 1)
    if not known or known[-1][0] < 2 * known[0][0]:
        once = [calls[0] for calls in by_size if len(calls) == 1]
        most = min((records for records, seconds in once if records > 1 and seconds > latency), default=UNBOUNDED)
        if known and known[-1][0] > 1 and known[-1][1] > latency:
            # All were of about one size. A smaller call shows what it saves.
            records, seconds = known[-1]
            most = min(most, int(records * min(0.5, latency / seconds)))
        return most
    (fewest, shortest), (most, longest) = known[0], known[-1]
    slope = max(0.0, (longest - shortest) / (most - fewest))
    # By the quickest of the smallest calls: the others may have waited for something else, and this counts several
    # times.
    smallest = min(by_size, key=_usual)
    by_itself = max(0.0, min(seconds - slope * records for records, seconds in (known[0], *smallest)))
    within = by_itself + max(latency, SHARE_BY_ITSELF * by_itself)
    records, seconds = _usual(by_size[-1])
    # A handler that has become quick is noticed in its small calls. What is known of larger ones may be old.
    at_least = 2 * records if seconds <= within / 2 else 0
    return max(at_least, _within(within, [(0, by_itself), *known]))


def _usual(calls: Sequence[_Call]) -> _Call:
    """Return the call of middle speed among calls of one size; of two the quicker."""
    return sorted(calls, key=lambda call: call[1] / call[0])[(len(calls) - 1) // 2]


def _within(seconds: float, known: list[_Call]) -> int:
    """Return how many records take up to `seconds`, on the lines from each known call to the next larger one."""
    found = unbounded = UNBOUNDED  # where more records take no longer
    for (fewer, shorter), (more, longer) in pairwise(known):
        if longer > shorter:
            at = fewer + (seconds - shorter) * (more - fewer) / (longer - shorter)
            found = int(at)
            if at < more:
                return found
        else:
            found = unbounded
    return found
