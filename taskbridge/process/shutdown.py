"""A worker's shutdown, as its runs see it: warm, they end after the batch in hand; cold, they hand it over."""

from __future__ import annotations

import mmap
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from billiard import common as billiard
from celery import signals
from celery.exceptions import WorkerShutdown, WorkerTerminate

__all__ = ["ends_process", "is_stopping", "note_stop", "notice_signals", "waits_for_stop"]

STOP_ARRIVES: Final = 1.0
"""Seconds within which a worker notices a signal that its pool processes got too."""

# Memory that the processes of a prefork pool share: no signal tells them that their worker stops.
_FLAG: Final = mmap.mmap(-1, 1)


def is_stopping() -> bool:
    """Whether the worker of this process was told to stop."""
    return _FLAG[0] != 0


def waits_for_stop() -> bool:
    """Whether the worker of this process was told to stop, or is told so within `STOP_ARRIVES`.

    A supervisor may signal all processes of a worker at once, and this one may be the first to run.
    """
    ends = time.monotonic() + STOP_ARRIVES
    while not is_stopping() and time.monotonic() < ends:
        time.sleep(0.01)
    return is_stopping()


def ends_process(error: BaseException) -> bool:
    """Whether `error` was raised because somebody told this process to end, and not by what it was doing.

    In the main thread Celery raises WorkerShutdown or WorkerTerminate once its worker is told to stop, its pool raises
    SystemExit, and Python raises KeyboardInterrupt where nobody else handles Ctrl-C. A handler may raise each of them
    on its own.
    """
    if threading.current_thread() is not threading.main_thread():
        return False
    if isinstance(error, KeyboardInterrupt):
        return signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if isinstance(error, WorkerShutdown | WorkerTerminate):
        return is_stopping()
    return isinstance(error, SystemExit) and bool(billiard.terminate_handler_fired())  # type: ignore[attr-defined]


def note_stop() -> None:
    """Let the runs of this worker know that it was told to stop."""
    _FLAG[0] = 1


def notice_signals() -> None:
    """Note a stop when the worker's main process gets the signal for it, and then do what Celery does.

    Celery's own notice of a cold shutdown comes only after it has ended the pool processes.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT):
        handler = signal.getsignal(number)
        if callable(handler):
            signal.signal(number, _noting(handler, os.getpid()))


def _noting(handler: Callable[[int, Any], Any], worker: int) -> Callable[[int, Any], Any]:
    def told(number: int, frame: Any) -> Any:
        # Pool processes inherit this.
        if os.getpid() == worker:
            note_stop()
        return handler(number, frame)

    return told


@signals.worker_init.connect(weak=False)
def _begins(**_: Any) -> None:
    _FLAG[0] = 0


@signals.worker_shutting_down.connect(weak=False)
def _stops(**_: Any) -> None:
    note_stop()
