"""Context managers around each call of a handler: a framework adds one so that its ORM writes in the transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Final, Protocol

from taskbridge.declaring.batch import Batch

__all__ = ["AROUND", "Around", "Hook", "around"]

Hook = Callable[[], object]


class Around(Protocol):
    """Makes the context manager for one call."""

    def __call__(self, batch: Batch, after_commit: Callable[[Hook], None]) -> AbstractContextManager[object]:
        """Enter before the handler is called with `batch`, and leave after it, in the same thread.

        Hooks given to `after_commit` are called after the batch has committed, and never if it does not commit. An
        error that is raised on leaving counts as the handler's.
        """
        ...


AROUND: Final[list[Around]] = []
"""Those of this process; a module adds its own when it is loaded."""


@contextmanager
def around(batch: Batch, after_commit: Callable[[Hook], None]) -> Iterator[None]:
    """Enter all of `AROUND`, the first one first."""
    with ExitStack() as entered:
        for one in AROUND:
            entered.enter_context(one(batch, after_commit))
        yield
