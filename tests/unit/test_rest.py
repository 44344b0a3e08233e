"""How long the reconciler rests after rounds that take long, so that these do not keep Postgres at work all the time."""

from __future__ import annotations

import pytest

from taskbridge.worker.poller import rest_after


@pytest.mark.parametrize("seconds", [0.2, 0.5, 1.2, 3.0, 4.0, 40.0, 1_000.0])
def test_it_rests_ten_times_as_long_as_a_round_took_at_the_least(seconds: float) -> None:
    assert rest_after(seconds) >= 10 * seconds


@pytest.mark.parametrize("seconds", [0.0, 0.05, 0.1])
def test_after_a_short_round_it_rests_for_the_interval_alone(seconds: float) -> None:
    assert rest_after(seconds) <= 0


@pytest.mark.parametrize("seconds", [0.5, 1.0, 3.0])
def test_up_to_a_round_of_three_seconds_it_rests_half_a_minute_at_the_most(seconds: float) -> None:
    assert rest_after(seconds) <= 30
