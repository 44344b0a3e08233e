"""What follows from the time stamps of events and calls."""

from __future__ import annotations

import math

import pytest

from benchmarks.calls import Call, Delays, Event, delays
from benchmarks.recovery import Recovered, recovered


def call(started: float, ended: float, *numbers: str) -> Call:
    return Call("t", numbers, started, ended, 1)


BURST = [Event("0", 10.0), Event("1", 10.1), Event("2", 10.2)]


def test_the_first_event_waits_for_the_first_line_and_the_last_one_for_the_end_of_the_call_that_held_it() -> None:
    calls = [call(10.001, 10.021, "0"), call(10.15, 10.17, "1"), call(10.2, 10.25, "2")]
    assert delays(BURST, calls) == pytest.approx(Delays(1, 50))


def test_a_record_that_was_delivered_twice_counts_the_first_time() -> None:
    calls = [call(10.5, 10.9, "0", "1", "2"), call(10.3, 10.4, "0", "1", "2")]
    assert delays(BURST, calls) == pytest.approx(Delays(300, 200))


def test_an_event_whose_record_no_call_held_was_not_covered() -> None:
    assert delays(BURST, [call(10.1, 10.2, "0", "1")]) == pytest.approx(Delays(100, None))
    assert delays(BURST, [call(10.1, 10.2, "1")]) == Delays(None, None)


def test_a_key_goes_on_with_the_first_call_after_the_crash_and_the_interrupted_record_with_the_one_that_held_it() -> (
    None
):
    calls = [call(1.0, 1.0, "0"), call(8.0, 8.0, "0", "2"), call(5.5, 5.5, "1")]
    assert recovered(["0", "1", "2", "3"], calls, crashed=5.0) == Recovered(0.5, 3.0, 1)


def test_calls_before_the_crash_are_no_recovery() -> None:
    assert recovered(["0", "1"], [call(1.0, 1.0, "0", "1")], crashed=5.0) == Recovered(math.inf, math.inf, 2)
