"""A worker's warm shutdown, as its runs see it: they end after the batch in hand."""

from __future__ import annotations

import mmap
import signal
import threading
from typing import Any, Final

from billiard import common as billiard
from celery import signals
from celery.exceptions import WorkerShutdown, WorkerTerminate

__all__ = ["ends_process", "is_stopping"]

# Memory that the processes of a prefork pool share: no signal tells them that their worker stops.
_FLAG: Final = mmap.mmap(-1, 1)


def is_stopping() -> bool:
    """Whether the worker of this process was told to stop."""
    return _FLAG[0] != 0


def ends_process(error: BaseException) -> bool:
    """Whether `error` was raised because somebody told this process to end, and not by what it was doing.

    Celery and its pool raise SystemExit in the main thread; Python raises KeyboardInterrupt where nobody else handles
    Ctrl-C.
    """
    if threading.current_thread() is not threading.main_thread():
        return False
    if isinstance(error, KeyboardInterrupt):
        return signal.getsignal(signal.SIGINT) is signal.default_int_handler
    told = isinstance(error, WorkerShutdown | WorkerTerminate) or billiard.terminate_handler_fired()  # type: ignore[attr-defined]
    return told and isinstance(error, SystemExit)


@signals.worker_init.connect(weak=False)
def _begins(**_: Any) -> None:
    _FLAG[0] = 0


@signals.worker_shutting_down.connect(weak=False)
def _stops(**_: Any) -> None:
    _FLAG[0] = 1
