"""A time falls into the bucket that Prometheus means."""

from __future__ import annotations

import pytest

from taskbridge.common.histogram import bucket


@pytest.mark.parametrize(("milliseconds", "expected"), [(0, 0), (5, 0), (5.1, 1), (10, 1), (10_000, 10), (10_001, 11)])
def test_a_bound_belongs_to_its_own_bucket(milliseconds: float, expected: int) -> None:
    assert bucket(milliseconds) == expected
