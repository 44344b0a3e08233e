"""Middleware for handler calls: a framework adds one so that its ORM writes in the batch's transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Final, Protocol

from taskbridge.declaring.batch import Batch

__all__ = ["MIDDLEWARE", "Hook", "Middleware", "middleware"]

Hook = Callable[[], object]


class Middleware(Protocol):
    """Returns a context manager for one call of a handler."""

    def __call__(self, batch: Batch, after_commit: Callable[[Hook], None]) -> AbstractContextManager[object]:
        """Enter before the handler is called with `batch`, and leave after it, in the same thread.

        Hooks passed to `after_commit` are called after the batch has committed, and never if it does not commit. An
        error raised on leaving counts as an error of the handler.
        """
        ...


MIDDLEWARE: Final[list[Middleware]] = []
"""The middleware of this process; modules add their own when they are imported."""


@contextmanager
def middleware(batch: Batch, after_commit: Callable[[Hook], None]) -> Iterator[None]:
    """Enter all of `MIDDLEWARE` in order."""
    with ExitStack() as entered:
        for each in MIDDLEWARE:
            entered.enter_context(each(batch, after_commit))
        yield
