"""A worker's shutdown: in a warm one, runs end after the current batch; in a cold one, they hand it over."""

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
"""Seconds within which a worker notices a signal that its pool processes also got."""

# Shared memory of the processes of a prefork pool: they get no signal when their worker stops.
_FLAG: Final = mmap.mmap(-1, 1)


def is_stopping() -> bool:
    """Whether the worker of this process was told to stop."""
    return _FLAG[0] != 0


def waits_for_stop() -> bool:
    """Whether the worker of this process was told to stop, waiting up to `STOP_ARRIVES` for it.

    A supervisor may signal all processes of a worker at once, and this one may notice first.
    """
    ends = time.monotonic() + STOP_ARRIVES
    while not is_stopping() and time.monotonic() < ends:
        time.sleep(0.01)
    return is_stopping()


def ends_process(error: BaseException) -> bool:
    """Whether `error` was raised because this process was told to end, and not by the code that it was running.

    In the main thread, Celery raises WorkerShutdown or WorkerTerminate once its worker is told to stop, its pool raises
    SystemExit, and Python raises KeyboardInterrupt unless something else handles Ctrl-C. A handler may also raise any
    of them itself.
    """
    if threading.current_thread() is not threading.main_thread():
        return False
    if isinstance(error, KeyboardInterrupt):
        return signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if isinstance(error, WorkerShutdown | WorkerTerminate):
        return is_stopping()
    return isinstance(error, SystemExit) and bool(billiard.terminate_handler_fired())  # type: ignore[attr-defined]


def note_stop() -> None:
    """Note for the runs of this worker that it was told to stop."""
    _FLAG[0] = 1


def notice_signals() -> None:
    """Note a stop when the worker's main process gets the signal for it, before Celery's own handler.

    Celery announces a cold shutdown only after it has ended the pool processes.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT):
        handler = signal.getsignal(number)
        if callable(handler):
            signal.signal(number, _noting(handler, os.getpid()))


def _noting(handler: Callable[[int, Any], Any], worker: int) -> Callable[[int, Any], Any]:
    def note_and_handle(number: int, frame: Any) -> Any:
        # Pool processes inherit this handler.
        if os.getpid() == worker:
            note_stop()
        return handler(number, frame)

    return note_and_handle


@signals.worker_init.connect(weak=False)
def _begins(**_: Any) -> None:
    _FLAG[0] = 0


@signals.worker_shutting_down.connect(weak=False)
def _stops(**_: Any) -> None:
    note_stop()
