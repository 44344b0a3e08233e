"""What others do around each call of a handler, as a framework whose ORM is to write in the batch's transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Final, Protocol

from taskbridge.declaring.batch import Batch

__all__ = ["AROUND", "Around", "Hook", "around"]

Hook = Callable[[], object]


class Around(Protocol):
    """Something that is around each call."""

    def __call__(self, batch: Batch, after_commit: Callable[[Hook], None]) -> AbstractContextManager[object]:
        """Enter before the handler is called with `batch`, and leave after it, in the same thread.

        What is given to `after_commit` is called when the batch has committed, and not where it does not. An error at
        leaving counts as the handler's.
        """
        ...


AROUND: Final[list[Around]] = []
"""Whoever wants to be around the calls of this process's handlers adds itself when it is loaded."""


@contextmanager
def around(batch: Batch, after_commit: Callable[[Hook], None]) -> Iterator[None]:
    """Enter all of them, the first one first."""
    with ExitStack() as entered:
        for one in AROUND:
            entered.enter_context(one(batch, after_commit))
        yield
