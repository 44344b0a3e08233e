"""Ctrl-C, SIGTERM and SIGHUP end a command in order: what it started is stopped before the process ends.

The first signal raises `Interrupted` where the program stands. Once a command is being stopped, by a signal or because
it is done, another signal only says that what is slow to stop should hurry.
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
    """A signal asks the process to end. A KeyboardInterrupt, so that psycopg cancels the statement it waits for."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number

    @property
    def exit_status(self) -> int:
        """128 + the signal's number, as a shell reports it."""
        return 128 + self.number


class _State:
    """Of this process: whether a step must not be cut, which signal waits for its end, and whether another came."""

    steps = 0
    kept: int | None = None
    stopping = False
    hurried = False


def install() -> None:
    """Catch the signals. SIGHUP stays ignored where it was, which is what `nohup` asks for."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if number is not signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _caught)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Let a short step come to its end: a first signal inside raises after it. A second one raises at once."""
    _State.steps += 1
    try:
        yield
    finally:
        _State.steps -= 1
    if _State.kept is not None and not _State.stopping:
        _raise(_State.kept)


def steps(of: Iterator[T]) -> Iterator[T]:
    """Yield what an iterator of short steps yields; a first signal raises between two of them."""
    from taskbridge.common.server_errors import translated_errors

    while True:
        with uninterrupted(), translated_errors():
            found = next(of, None)
        if found is None:
            return
        yield found


def check() -> None:
    """Raise for a signal that was caught and did not get here; for loops that would otherwise go on for ever.

    Python drops what a signal raises inside a finalizer or a weakref's callback.
    """
    if _State.kept is not None:
        _raise(_State.kept)


def stopping() -> None:
    """Raise no more: what was started is being stopped in order."""
    _State.stopping = True


def is_hurried() -> bool:
    """Whether a signal came while the command was being stopped already."""
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
