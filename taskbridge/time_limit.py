"""The soft time limit of a handler's call."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from celery.exceptions import SoftTimeLimitExceeded

__all__ = ["interrupts", "soft_time_limit"]


def interrupts() -> bool:
    """Whether the limit can be raised in this thread: Python interrupts none but the main thread of a process."""
    return threading.current_thread() is threading.main_thread()


@contextmanager
def soft_time_limit(seconds: float | None) -> Iterator[None]:
    """Raise SoftTimeLimitExceeded in the block after `seconds` (None: never), in the main thread of a process.

    In other threads nothing is raised.
    """
    if seconds is None or not interrupts():
        yield
        return

    def time_is_up(_: int, __: FrameType | None) -> None:
        raise SoftTimeLimitExceeded(f"the handler took longer than {seconds:g} s")

    before = signal.signal(signal.SIGALRM, time_is_up)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
