"""A worker's warm shutdown, as its runs see it: they end after the batch in hand."""

from __future__ import annotations

import mmap
from typing import Any, Final

from celery import signals

__all__ = ["is_stopping"]

# Shared with the processes of a prefork pool, which no signal tells that their worker stops.
_FLAG: Final = mmap.mmap(-1, 1)


def is_stopping() -> bool:
    """Whether the worker of this process was told to stop."""
    return _FLAG[0] != 0


@signals.worker_init.connect(weak=False)
def _begins(**_: Any) -> None:
    _FLAG[0] = 0


@signals.worker_shutting_down.connect(weak=False)
def _stops(**_: Any) -> None:
    _FLAG[0] = 1
