"""How much a measured thing grows per hour, by the slope of Theil and Sen, which outliers do not move."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations
from statistics import fmean, median
from typing import Final, NamedTuple

__all__ = ["FEWEST", "Point", "Slope", "cycle_means", "fit"]

FEWEST: Final = 6
"""Points below which no slope is given: their interval would say nothing."""
Z: Final = 1.96

Point = tuple[float, float]


class Slope(NamedTuple):
    """Growth per hour, and the interval that contains it in 95 of 100 cases."""

    per_hour: float
    low: float
    high: float


def cycle_means(points: Sequence[Point], minutes: float) -> list[Point]:
    """Return the mean of each whole cycle in the second half of a run; points are minutes and values.

    Within a cycle everything goes up and down by design. What the first half builds up, such as caches, is not growth.
    """
    if not points:
        return []
    last = points[-1][0]
    cycles = range(math.ceil(last / 2 / minutes), int(last / minutes))
    found = []
    for number in cycles:
        values = [value for at, value in points if number <= at / minutes < number + 1]
        if values:
            found.append(((number + 0.5) * minutes, fmean(values)))
    return found


def fit(points: Sequence[Point]) -> Slope | None:
    """Return the slope, with the interval of Sen (1968); None: there are too few points."""
    count = len(points)
    if count < FEWEST:
        return None
    slopes = sorted(60 * (second[1] - first[1]) / (second[0] - first[0]) for first, second in combinations(points, 2))
    spread = Z * math.sqrt(count * (count - 1) * (2 * count + 5) / 18)
    low = max(0, math.floor((len(slopes) - spread) / 2))
    high = min(len(slopes) - 1, math.ceil((len(slopes) + spread) / 2))
    return Slope(median(slopes), slopes[low], slopes[high])
