"""A ownership is trusted from before the call that confirmed it, and never after it was refused."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import redis

from taskbridge.process.heartbeat import Heartbeat, Ownership
from tests.waiting import wait_until


def counting(beats: list[int]) -> Callable[[], bool]:
    """Return a heartbeat that is always confirmed and counts itself."""

    def beat() -> bool:
        beats.append(1)
        return True

    return beat


@contextmanager
def kept(heart: Heartbeat, beat: Callable[[], bool], age: float = 0.0) -> Iterator[Ownership]:
    """Beat for a run that began `age` seconds ago, until the block ends."""
    ownership = heart.add(beat, time.monotonic() - age)
    try:
        yield ownership
    finally:
        heart.discard(ownership)


def test_ownership_is_confirmed_while_the_run_lasts_and_not_after() -> None:
    beats: list[int] = []
    heart = Heartbeat(ttl=0.15)
    with kept(heart, counting(beats)) as ownership:
        wait_until(lambda: len(beats) >= 5, "five beats")
        assert ownership.owned
    after = len(beats)
    # One beat may have been under way. Another run's beats are the clock: no sleeping here.
    others: list[int] = []
    with kept(heart, counting(others)):
        wait_until(lambda: len(others) >= 3, "three beats of another run")
    assert len(beats) <= after + 1


def test_a_refused_beat_ends_the_trust_for_good() -> None:
    answers = iter([True, False])
    ownership = Ownership(lambda: next(answers, True), trust=60, confirmed=time.monotonic())
    owned = []
    for _ in range(3):
        ownership.renew()
        owned.append(ownership.owned)
    assert owned == [True, False, False]


def test_trust_is_shorter_than_the_time_after_which_a_run_counts_as_dead() -> None:
    heart = Heartbeat(ttl=600)
    for age, owned in ((500, True), (590, False)):
        with kept(heart, lambda: True, age) as ownership:
            assert ownership.owned is owned


def test_a_confirmation_that_took_long_counts_from_before_it_was_asked_for() -> None:
    def slow() -> bool:
        return not threading.Event().wait(0.2)

    ownership = Ownership(slow, trust=0.1, confirmed=time.monotonic())
    ownership.renew()
    assert not ownership.owned


@pytest.mark.parametrize("error", [redis.ConnectionError("gone"), ValueError("whatever a client raises")])
def test_ownership_that_nobody_confirms_runs_out_and_does_not_end_the_others(error: Exception) -> None:
    def unreachable() -> bool:
        raise error

    beats: list[int] = []
    heart = Heartbeat(ttl=0.3)
    with kept(heart, unreachable) as ownership, kept(heart, counting(beats)):
        wait_until(lambda: not ownership.owned, "run out")
        before = len(beats)
        wait_until(lambda: len(beats) >= before + 3, "three beats")


def test_an_alarm_goes_off_in_time_once_and_not_after_its_block() -> None:
    heart, rung = Heartbeat(ttl=600), list[str]()
    with kept(heart, lambda: True):
        with heart.alarm(0.05, lambda: rung.append("late")), heart.alarm(600, lambda: rung.append("never")):
            wait_until(lambda: rung == ["late"], "the alarm")
        for _ in range(20):
            with heart.alarm(1.0, lambda: rung.append("in time")):
                pass
        with heart.alarm(1.1, lambda: rung.append("last")):
            wait_until(lambda: "last" in rung, "the alarm")
    assert rung == ["late", "last"]


def test_a_block_waits_for_an_alarm_that_went_off() -> None:
    heart, rung, ended = Heartbeat(ttl=600), threading.Event(), threading.Event()

    def act() -> None:
        rung.set()
        time.sleep(0.3)
        ended.set()

    with kept(heart, lambda: True), heart.alarm(0.0, act):
        assert rung.wait(30)
    assert ended.is_set()
