"""How long the base rests after a round: no backlog keeps Postgres at work all the time."""

from __future__ import annotations

import pytest

from taskbridge.running.tail import rest_after


@pytest.mark.parametrize("seconds", [0.2, 0.5, 1.2, 3.0, 4.0, 40.0, 1_000.0])
def test_a_base_round_takes_a_tenth_of_the_time_at_the_most(seconds: float) -> None:
    assert rest_after(seconds) >= 10 * seconds


@pytest.mark.parametrize("seconds", [0.0, 0.05, 0.1])
def test_a_short_round_needs_no_rest_but_the_interval(seconds: float) -> None:
    assert rest_after(seconds) <= 0


@pytest.mark.parametrize("seconds", [0.5, 1.0, 3.0])
def test_what_is_forgotten_is_found_within_half_a_minute_where_a_round_takes_three_seconds(seconds: float) -> None:
    assert rest_after(seconds) <= 30
