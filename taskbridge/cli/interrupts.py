"""Ctrl-C, SIGTERM and SIGHUP shut a command down cleanly: it stops what it started before the process exits.

The first signal raises `Interrupted` in the running code. While a command is stopping, because of a signal or because
it is done, another signal only makes it stop faster.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TypeVar

__all__ = ["Interrupted", "check", "install", "is_hurried", "steps", "stopping", "uninterrupted"]

T = TypeVar("T")


class Interrupted(KeyboardInterrupt):
    """A signal ends the process. It is a KeyboardInterrupt, so that psycopg cancels the current statement."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number

    @property
    def exit_status(self) -> int:
        """128 plus the signal number, as shells report it."""
        return 128 + self.number


class _State:
    """This process: whether it is in a step, which signal waits for its end, and whether another one has come."""

    steps = 0
    kept: int | None = None
    stopping = False
    hurried = False


def install() -> None:
    """Install the signal handlers. SIGHUP stays ignored if it is ignored, as under `nohup`."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if number is not signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _caught)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Finish a short step: a first signal raises after the block, a second one at once."""
    _State.steps += 1
    try:
        yield
    finally:
        _State.steps -= 1
    if _State.kept is not None and not _State.stopping:
        _raise(_State.kept)


def steps(of: Iterator[T]) -> Iterator[T]:
    """Iterate over short steps; a first signal raises between two of them."""
    from taskbridge.common.server_errors import translated_errors

    while True:
        with uninterrupted(), translated_errors():
            found = next(of, None)
        if found is None:
            return
        yield found


def check() -> None:
    """Raise `Interrupted` if a signal was caught earlier; for loops that would otherwise never end.

    Python swallows exceptions that a signal handler raises in a finalizer or a weakref callback.
    """
    if _State.kept is not None:
        _raise(_State.kept)


def stopping() -> None:
    """From now on signals do not raise, because the command is stopping."""
    _State.stopping = True


def is_hurried() -> bool:
    """Whether a signal has come while the command was stopping."""
    return _State.hurried


def _caught(number: int, _frame: FrameType | None) -> None:
    if _State.stopping:
        _State.hurried = True
    elif _State.steps and _State.kept is None:
        _State.kept = number
    else:
        _raise(number)


def _raise(number: int) -> None:
    _State.kept = number
    _State.stopping = True
    raise Interrupted(number)
