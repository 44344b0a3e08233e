"""Histograms of durations."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

__all__ = ["BOUNDS_MS", "Histogram", "bucket", "quantile", "within"]

BOUNDS_MS: Final = (5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000)
"""Inclusive upper bounds of the buckets in milliseconds. One more bucket has the longer durations."""


def bucket(milliseconds: float) -> int:
    """Return the index of the bucket that a duration belongs to."""
    return bisect_left(BOUNDS_MS, milliseconds)


def quantile(counts: Sequence[int], share: float) -> float | None:
    """Return the upper bound of the bucket that contains a quantile: infinite for the last one, None without values."""
    remaining = sum(counts) * share
    if not remaining:
        return None
    for bound, count in zip(BOUNDS_MS, counts, strict=False):
        remaining -= count
        if remaining <= 0:
            return bound
    return math.inf


def within(milliseconds: float) -> str:
    """Return a quantile as text, which is only as exact as its bucket."""
    return f"> {BOUNDS_MS[-1]:,} ms" if math.isinf(milliseconds) else f"≤ {milliseconds:,} ms"


class Histogram:
    """How many durations are in each bucket, and their sum in milliseconds."""

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_MS) + 1)
        self.sum_ms = 0.0

    def observe(self, milliseconds: float) -> None:
        """Count a duration. Only one thread may call this; others may read at the same time."""
        self.counts[bucket(milliseconds)] += 1
        self.sum_ms += milliseconds
