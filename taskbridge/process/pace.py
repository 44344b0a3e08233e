"""How many records a handler is given at once, learned from how long its calls took.

A call costs something by itself (a request, a transaction) and something for each record. Only calls of different sizes
show which is which, so the last calls are kept by size: one class for each power of two.
"""

from __future__ import annotations

import math
from itertools import combinations
from statistics import median
from typing import Final, NamedTuple

__all__ = ["FIRST_CALL", "FIXED_PARTS", "GROWTH", "Pace"]

FIRST_CALL: Final = 25
"""Most records of the first call in a process, when nothing is known: as if each took 2 ms of the usual budget."""

FIXED_PARTS: Final = 4
"""The records of a call may take this many times what the call costs by itself, so that small batches waste little."""

GROWTH: Final = 8
"""How many times as large as any before a call may be."""

_KEPT: Final = 3
"""Calls of each size that are remembered. One slow call of three is never the middle one."""

_Call = tuple[int, float]


class _Usual(NamedTuple):
    """The call of middle speed among those that are kept of one size, and when they came: the count of calls then."""

    records: int
    seconds: float
    oldest: float
    newest: int

    def scaled(self, records: int) -> float:
        """How long so many records take at the most that are more than these: what is fixed does not grow."""
        return self.seconds * records / self.records


class Pace:
    """What the calls of one pipeline's handler took lately, in this process. Times are seconds.

    It holds at most three calls for each power of two up to the batch size. Threads may share it.
    """

    def __init__(self) -> None:
        self._by_size: dict[int, tuple[tuple[int, float, int], ...]] = {}
        self._count = 0
        self._failed = 0.0

    def note_failed(self, seconds: float) -> None:
        """Remember how long a call took that failed, until one is done. It says nothing of how many records to give."""
        self._failed = max(self._failed, seconds)

    def note(self, records: int, seconds: float) -> None:
        """Remember a call that was given so many records."""
        self._failed = 0.0
        self._count += 1
        size, call = records.bit_length(), (records, max(seconds, 1e-6), self._count)
        self._by_size[size] = (*self._by_size.get(size, ()), call)[-_KEPT:]

    @property
    def small_call(self) -> float | None:
        """How long the slowest took of the last smallest calls, and of those that failed since; None: none is known."""
        sizes = self._by_size
        return max(self._failed, *(seconds for _, seconds, _ in sizes[min(sizes)])) if sizes else None

    def most_records(self, budget: float) -> int:
        """Return how many records to deliver at once; at least 1.

        A first event that comes meanwhile waits for the call, so the records take `budget` seconds, or `FIXED_PARTS`
        times what the call costs by itself if that is more: calls of few records would otherwise cost the most.
        """
        known = self._known()
        if not known:
            return FIRST_CALL
        (fewest, _), (most, longest) = known[0], known[-1]
        if most < 2 * fewest:
            # All were of about one size, so it may be the records that cost. If a call within the budget would be of
            # that size too, a smaller one shows what it saves.
            found = int(most * budget / longest)
            if most / 2 < found < 2 * most:
                found = most // 2
            return max(1 if most > 1 else 2, min(found, most * GROWTH))
        fixed = median(
            max(0.0, shorter - fewer * (longer - shorter) / (more - fewer))
            for (fewer, shorter), (more, longer) in combinations(known, 2)
            if more >= 2 * fewer
        )
        by_records = [(records, max(0.0, seconds - fixed)) for records, seconds in known]
        return max(1, _within(max(budget, FIXED_PARTS * fixed), by_records))

    def _known(self) -> list[_Call]:
        """Return the usual call of each size, by size; none takes longer than a larger one.

        Without those that are out of date: one that took twice as long as a larger one, as the first call that connects
        does, and one that took twice as long as smaller ones since allow.
        """
        current: list[_Usual] = []
        for found in map(_usual, sorted(self._by_size.values())):
            if not any(one.oldest > found.newest and found.seconds > 2 * one.scaled(found.records) for one in current):
                current.append(found)
        known: list[_Call] = []
        least = math.inf
        for one in reversed(current):
            if one.seconds <= 2 * least:
                least = min(least, one.seconds)
                known.append((one.records, least))
        return known[::-1]


def _usual(calls: tuple[tuple[int, float, int], ...]) -> _Usual:
    """Return the call of middle speed among calls of one size; of two the quicker."""
    records, seconds, _ = sorted(calls, key=lambda call: call[1] / call[0])[(len(calls) - 1) // 2]
    return _Usual(records, seconds, calls[0][2] if len(calls) == _KEPT else -math.inf, calls[-1][2])


def _within(seconds: float, known: list[_Call]) -> int:
    """Return how many records take up to `seconds`, on the lines from each known call to the next larger one."""
    at = sum(longest <= seconds for _, longest in known)
    fewer, shorter = known[at - 1] if at else (0, 0.0)
    if at == len(known):
        return int(fewer * min(GROWTH, seconds / max(shorter, 1e-9)))
    more, longer = known[at]
    return int(fewer + (seconds - shorter) * (more - fewer) / (longer - shorter))
