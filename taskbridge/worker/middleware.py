"""Middleware around each call of a handler: a framework adds one so that its ORM writes in the batch's transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Final, Protocol

from taskbridge.declaring.batch import Batch

__all__ = ["MIDDLEWARE", "Hook", "Middleware", "middleware"]

Hook = Callable[[], object]


class Middleware(Protocol):
    """Makes the context manager for one call."""

    def __call__(self, batch: Batch, after_commit: Callable[[Hook], None]) -> AbstractContextManager[object]:
        """Enter before the handler is called with `batch`, and leave after it, in the same thread.

        Hooks given to `after_commit` are called after the batch has committed, and never if it does not commit. An
        error that is raised on leaving counts as the handler's.
        """
        ...


MIDDLEWARE: Final[list[Middleware]] = []
"""The middleware of this process; a module adds its own when it is loaded."""


@contextmanager
def middleware(batch: Batch, after_commit: Callable[[Hook], None]) -> Iterator[None]:
    """Enter all of `MIDDLEWARE`, the first one first."""
    with ExitStack() as entered:
        for each in MIDDLEWARE:
            entered.enter_context(each(batch, after_commit))
        yield
