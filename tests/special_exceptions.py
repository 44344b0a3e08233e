"""Exceptions that Celery or its pools treat in a special way, or that fill a log, by name."""

from __future__ import annotations

from collections.abc import Callable

from billiard.exceptions import WorkerLostError
from celery.exceptions import Ignore, Reject, Retry, SoftTimeLimitExceeded, WorkerShutdown, WorkerTerminate

__all__ = ["LONG", "SPECIAL"]

LONG = 50_000_000
"""Characters of an error's text."""


class Unpicklable(Exception):
    """As that of an HTTP client, whose request and response are needed to make it."""

    def __init__(self, message: str, *, request: object) -> None:
        super().__init__(message)
        self.request = request


def _with_a_long_cause(message: str) -> BaseException:
    error = ValueError(message)
    error.__cause__ = ValueError("x" * (LONG // 10))
    return error


SPECIAL: dict[str, Callable[[str], BaseException]] = {
    "Unpicklable": lambda message: Unpicklable(message, request=object()),
    "ValueError": lambda _: ValueError("x" * LONG),
    "ValueError, caused": _with_a_long_cause,
    "ExceptionGroup": lambda message: ExceptionGroup(message, [ValueError("x" * 10_000) for _ in range(1_000)]),
} | {
    kind.__name__: kind
    for kind in (
        Ignore,
        KeyboardInterrupt,
        MemoryError,
        Reject,
        Retry,
        SoftTimeLimitExceeded,
        WorkerLostError,
        WorkerShutdown,
        WorkerTerminate,
    )
}
