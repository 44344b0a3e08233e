"""For how long the machine itself stood still: what a process that only sleeps had to wait beyond its sleep.

The processors may be busy with the other arenas, or belong to somebody else for a moment. Whatever a worker does is
held up at least as often; such seconds say nothing about the project.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Iterator, MutableSequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

__all__ = ["Stalls", "observe"]

SLOT: Final = 0.05
"""Seconds of one entry."""
SLOTS: Final = 5 * 3600 * 20
"""Entries for five hours; after that nothing counts as a stall."""
SLEEPS: Final = 0.01
TOLERATED: Final = 0.002
"""Seconds by which every sleep is longer than it was asked to be."""


@dataclass(frozen=True)
class Stalls:
    """Entry n is the sum of all stalls until `SLOT` times n seconds after it `began`, by the monotonic clock."""

    began: float
    sums: MutableSequence[float]

    def between(self, since: float, until: float) -> float:
        """Return the seconds of stalls between two times."""
        return max(0.0, self._sum(until) - self._sum(since))

    def _sum(self, moment: float) -> float:
        return self.sums[min(max(0, int((moment - self.began) / SLOT)), SLOTS - 1)]

    def keep_sleeping(self) -> None:
        """Sleep, and note by how much each sleep was too long, until the parent ends or no entry is left."""
        parent, total, slot, before = os.getppid(), 0.0, 0, time.monotonic()
        while slot < SLOTS - 1 and os.getppid() == parent:
            time.sleep(SLEEPS)
            now = time.monotonic()
            total += max(0.0, now - before - SLEEPS - TOLERATED)
            before = now
            while slot < SLOTS - 1 and self.began + slot * SLOT < now:
                slot += 1
                self.sums[slot] = total


@contextmanager
def observe() -> Iterator[Stalls]:
    """Observe the machine with a process of its own, since this one may be held up by its own work."""
    context = multiprocessing.get_context("fork")
    stalls = Stalls(time.monotonic(), context.RawArray("d", SLOTS))
    observer = context.Process(target=stalls.keep_sleeping, daemon=True)
    observer.start()
    try:
        yield stalls
    finally:
        observer.kill()
        observer.join()
