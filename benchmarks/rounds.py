"""Measurements in turn, so that what the machine does besides weighs on all of them alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import log
from statistics import median, quantiles
from typing import NamedTuple, TypeVar

__all__ = ["Summary", "decades", "interleaved", "median_ratio", "slope", "summary"]

T = TypeVar("T")


def interleaved(subjects: Mapping[str, Callable[[], T]], rounds: int) -> dict[str, list[T]]:
    """Measure each subject once per round, every second round in reverse order; return what each gave, by round."""
    found: dict[str, list[T]] = {name: [] for name in subjects}
    for at in range(rounds):
        names = list(subjects) if at % 2 == 0 else list(subjects)[::-1]
        for name in names:
            found[name].append(subjects[name]())
    return found


def median_ratio(ours: Sequence[float], baseline: Sequence[float]) -> float:
    """Return the median of the rounds' ratios."""
    return median(our / base for our, base in zip(ours, baseline, strict=True))


class Summary(NamedTuple):
    """Of many measurements of one thing."""

    median: float
    p99: float
    longest: float


def summary(values: Sequence[float]) -> Summary:
    """Return median, 99th percentile and maximum of at least two values."""
    return Summary(median(values), quantiles(values, n=100, method="inclusive")[98], max(values))


def slope(points: Sequence[Sequence[float]]) -> float:
    """Return the exponent b of y = a * x ** b that fits the points best, by least squares on logarithms.

    0: y does not grow with x; 1: in proportion.
    """
    xs, ys = [log(x) for x, _ in points], [log(y) for _, y in points]
    mean_x, mean_y = sum(xs) / len(xs), sum(ys) / len(ys)
    return sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True)) / sum((x - mean_x) ** 2 for x in xs)


def decades(smallest: int, largest: int) -> list[int]:
    """Return at least two sizes up to the largest, each ten times the one before but for the last."""
    sizes = [min(smallest, largest // 10)]
    while sizes[-1] * 10 < largest:
        sizes.append(sizes[-1] * 10)
    return [*sizes, largest]
