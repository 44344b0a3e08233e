"""Ctrl-C, SIGTERM and SIGHUP raise `Interrupted`: a command stops what it started before the process exits."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TypeVar

__all__ = ["Interrupted", "check", "install", "steps", "uninterrupted"]

T = TypeVar("T")


class Interrupted(KeyboardInterrupt):
    """A signal ends the process. It is a KeyboardInterrupt, so that psycopg cancels the current statement."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.exit_status = 128 + number
        """As shells report it."""


class _State:
    """Whether this process is in a step, and the first signal that was caught."""

    in_step = False
    caught: int | None = None


def install() -> None:
    """Install the signal handlers. SIGHUP stays ignored if it is ignored, as under `nohup`."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if number is not signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _catch)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Finish a short step: a first signal raises after the block, a second one at once."""
    _State.in_step = True
    try:
        yield
    finally:
        _State.in_step = False
    check()


def steps(of: Iterator[T]) -> Iterator[T]:
    """Iterate over short steps; a first signal raises between two of them."""
    while True:
        with uninterrupted():
            step = next(of, None)
        if step is None:
            return
        yield step


def check() -> None:
    """Raise `Interrupted` if a signal was caught earlier; for loops that would otherwise never end.

    Python swallows exceptions that a signal handler raises in a finalizer or a weakref callback.
    """
    if _State.caught is not None:
        raise Interrupted(_State.caught)


def _catch(number: int, _frame: FrameType | None) -> None:
    is_first, _State.caught = _State.caught is None, number
    if not (is_first and _State.in_step):
        raise Interrupted(number)
