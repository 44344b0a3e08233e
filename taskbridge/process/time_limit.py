"""The soft time limit of a handler's call, and what happens if a handler catches its error and continues."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

import billiard
from celery.exceptions import SoftTimeLimitExceeded

__all__ = ["TimeLimitIgnored", "disarm", "longest_call", "soft_time_limit"]

MOST_INTERRUPTS: Final = 10
"""How often a handler that continues is interrupted again before its run is given up."""


class TimeLimitIgnored(BaseException):
    """The handler caught SoftTimeLimitExceeded and continued. `except Exception` does not catch this one."""


def _interrupts() -> bool:
    """Whether the limit can be raised in this thread: Python interrupts only the main thread of a process."""
    return threading.current_thread() is threading.main_thread()


def disarm() -> None:
    """Stop the timer of `soft_time_limit` before a wait that has its own time limit."""
    if _interrupts():
        signal.setitimer(signal.ITIMER_REAL, 0)


def longest_call(seconds: float) -> float:
    """Return after how many seconds a run gives up its tenant although its handler ignores this soft limit."""
    return seconds + MOST_INTERRUPTS * _interval(seconds)


@contextmanager
def soft_time_limit(seconds: float | None) -> Iterator[None]:
    """Raise SoftTimeLimitExceeded in the block after `seconds` (None: never), in the main thread of a process.

    If the block catches it and continues, `TimeLimitIgnored` is raised repeatedly. If it catches that too, its process
    is killed, provided that it belongs to a pool, which starts a new one. In other threads nothing is raised.
    """
    if seconds is None or not _interrupts():
        yield
        return
    raised, over = 0, False

    def time_is_up(_: int, __: FrameType | None) -> None:
        nonlocal raised
        if over:
            return
        raised += 1
        if raised == 1:
            raise SoftTimeLimitExceeded(f"the handler took longer than {seconds:g} s")
        if raised > MOST_INTERRUPTS and billiard.current_process().name != "MainProcess":
            os.kill(os.getpid(), signal.SIGKILL)
        raise TimeLimitIgnored(f"the handler took longer than {seconds:g} s, caught the error for it, and went on")

    before = signal.signal(signal.SIGALRM, time_is_up)
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, seconds, _interval(seconds))
            yield
        finally:
            # If the signal arrives just before this line, its error is raised here; the outer `finally` stops the timer
            over = True
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _interval(seconds: float) -> float:
    """Return how long a handler has to clean up before it is interrupted again."""
    return max(1.0, seconds / 10)
