"""Times by size, as counts per bucket."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

__all__ = ["BOUNDS_MS", "Histogram", "bucket", "quantile", "within"]

BOUNDS_MS: Final = (5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000)
"""Upper ends of the buckets in milliseconds, each included. One more bucket has the longer times."""


def bucket(milliseconds: float) -> int:
    """Return which bucket a time belongs to, counted from 0."""
    return bisect_left(BOUNDS_MS, milliseconds)


def quantile(counts: Sequence[int], share: float) -> float | None:
    """Return the upper end of the bucket in which a quantile lies: infinite for the last one, None without times."""
    left = sum(counts) * share
    if not left:
        return None
    for bound, count in zip(BOUNDS_MS, counts, strict=False):
        left -= count
        if left <= 0:
            return bound
    return math.inf


def within(milliseconds: float) -> str:
    """Return how a quantile is told: it has no more than the ends of its bucket."""
    return f"> {BOUNDS_MS[-1]:,} ms" if math.isinf(milliseconds) else f"≤ {milliseconds:,} ms"


class Histogram:
    """How many times fell into each bucket, and the sum of all in milliseconds."""

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_MS) + 1)
        self.sum_ms = 0.0

    def observe(self, milliseconds: float) -> None:
        """Count one time. For one thread; others may read meanwhile."""
        self.counts[bucket(milliseconds)] += 1
        self.sum_ms += milliseconds
