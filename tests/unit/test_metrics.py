"""A time falls into the bucket that Prometheus means, and a server that hangs holds nobody up for long."""

from __future__ import annotations

import threading

import pytest

from taskbridge.common.histogram import BOUNDS_MS, Histogram, bucket
from taskbridge.errors import Unavailable
from taskbridge.observing import metrics
from taskbridge.observing.metrics import _cumulative, _Server
from tests.waiting import wait_until


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


def test_a_server_that_hangs_is_asked_again_only_when_it_has_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "ANSWER_TIMEOUT", 0.05)
    server, answered, asked = _Server("Postgres"), threading.Event(), []

    def question() -> int:
        asked.append(1)
        answered.wait()
        return len(asked)

    for _ in range(3):
        with pytest.raises(Unavailable, match="Postgres does not answer in time"):
            server.ask(question)
    assert len(asked) == 1
    answered.set()
    wait_until(lambda: not _asking(), "the thread has ended")
    assert server.ask(question) == 2


def test_an_error_of_the_server_is_raised_where_it_was_asked() -> None:
    def question() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        _Server("Redis").ask(question)


def _asking() -> bool:
    return any(thread.name.startswith("taskbridge-metrics") for thread in threading.enumerate())
