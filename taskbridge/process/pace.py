"""How many records a handler is given at once, learned from how long its calls took.

A call costs something by itself (a request, a transaction) and something for each record. Only calls of different sizes
show which is which, so the last calls are kept by size: one class for each power of two.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Final

__all__ = ["FIRST_CALL", "MOST_BUDGETS", "Pace"]

FIRST_CALL: Final = 100
"""Most records of the first call in a process, when nothing is known."""

MOST_BUDGETS: Final = 5
"""A larger call than any before may take this many budgets, if a call costs nothing by itself."""

_KEPT: Final = 3
"""Calls of each size that are remembered. One slow call of three is never the middle one."""

_Call = tuple[int, float]


class Pace:
    """What the calls of one pipeline's handler took lately, in this process. Times are seconds.

    It holds at most three calls for each power of two up to the batch size. Threads may share it.
    """

    def __init__(self) -> None:
        self._by_size: dict[int, tuple[_Call, ...]] = {}
        self._failed = 0.0

    def note_failed(self, seconds: float) -> None:
        """Remember how long a call took that failed, until one is done. It says nothing of how many records to give."""
        self._failed = max(self._failed, seconds)

    def note(self, records: int, seconds: float) -> None:
        """Remember a call that was given so many records."""
        self._failed = 0.0
        size = records.bit_length()
        self._by_size[size] = (*self._by_size.get(size, ()), (records, max(seconds, 1e-6)))[-_KEPT:]

    @property
    def small_call(self) -> float | None:
        """How long the slowest took of the last smallest calls, and of those that failed since; None: none is known."""
        sizes = self._by_size
        return max(self._failed, *(seconds for _, seconds in sizes[min(sizes)])) if sizes else None

    def most_records(self, left: float, budget: float) -> int:
        """Return how many records to deliver with `left` of a run's `budget`; at least 1.

        As many as take what is left of the budget. If a call costs a large part of that by itself, small batches
        would save little: then as many as take as long as the call itself.
        """
        known = sorted(_usual(calls) for calls in list(self._by_size.values()))
        if not known:
            return FIRST_CALL
        (fewest, shortest), (most, longest) = known[0], known[-1]
        largest = int(most * max(2, MOST_BUDGETS * budget / longest))
        if most < 2 * fewest:
            # All were of about one size. Quick calls may grow; after slow ones a smaller call shows what it saves.
            return largest if longest <= budget or most == 1 else max(1, int(most * budget / longest))
        slope = max(0.0, (longest - shortest) / (most - fewest))
        by_itself = max(0.0, shortest - slope * fewest)
        return max(1, min(largest, _within(max(left, 2 * by_itself), [(0, by_itself), *known])))


def _usual(calls: tuple[_Call, ...]) -> _Call:
    """Return the call of middle speed among calls of one size; of two the quicker."""
    return sorted(calls, key=lambda call: call[1] / call[0])[(len(calls) - 1) // 2]


def _within(seconds: float, known: list[_Call]) -> int:
    """Return how many records take up to `seconds`, on the lines from each known call to the next larger one."""
    found = unbounded = known[-1][0] << 20  # where more records take no longer
    for (fewer, shorter), (more, longer) in pairwise(known):
        if longer > shorter:
            at = fewer + (seconds - shorter) * (more - fewer) / (longer - shorter)
            found = int(at)
            if at < more:
                return found
        else:
            found = unbounded
    return found
