"""A time falls into the bucket that Prometheus means."""

from __future__ import annotations

import pytest

from taskbridge.common.histogram import BOUNDS_MS, Histogram, bucket
from taskbridge.observe.metrics import _cumulative


@pytest.mark.parametrize(("milliseconds", "expected"), [(0, 0), (5, 0), (5.1, 1), (10, 1), (10_000, 10), (10_001, 11)])
def test_a_bound_belongs_to_its_own_bucket(milliseconds: float, expected: int) -> None:
    assert bucket(milliseconds) == expected


def test_a_bucket_has_all_that_is_shorter_too() -> None:
    histogram = Histogram()
    for milliseconds in (1, 7, 7, 20_000):
        histogram.observe(milliseconds)
    buckets, seconds = _cumulative(histogram)
    assert buckets[:3] == [("0.005", 1), ("0.01", 3), ("0.025", 3)]
    assert buckets[-2:] == [("10.0", 3), ("+Inf", 4)]
    assert len(buckets) == len(BOUNDS_MS) + 1
    assert seconds == pytest.approx(20.015)
