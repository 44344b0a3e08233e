"""The event loop of a process, for handlers that are coroutines.

There is one loop in one thread, whatever the pool, so that a client that belongs to a loop (such as an HTTP session)
can be kept between calls. The calling thread waits, so heartbeat, soft time limit and the batch's connection work as
for any handler.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections.abc import Awaitable
from typing import Any, Final

from celery.exceptions import SoftTimeLimitExceeded

from taskbridge.common.texts import log_error

__all__ = ["EventLoop", "NotBegun"]

log = logging.getLogger(__name__)

CANCEL_TIMEOUT: Final = 10.0
"""Seconds that a coroutine has to end after it was cancelled."""


class NotBegun(SoftTimeLimitExceeded):
    """A coroutine did not begin in time, and never will, because another one blocks the loop."""


class EventLoop:
    """Runs coroutines for the threads of a process. Its own thread starts with the first."""

    def __init__(self) -> None:
        self._starting: Final = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    def run(self, awaitable: Awaitable[Any], seconds: float | None = None) -> Any:
        """Wait until `awaitable` has ended, and return its result.

        If this wait is interrupted, the awaitable is cancelled and has ten more seconds to end.

        Raises:
            NotBegun: another coroutine has blocked the loop for `seconds`.
            SoftTimeLimitExceeded: it took longer than `seconds`.
            BaseException: the error that it raised.
        """
        call = _Call(awaitable)
        loop = self._started()
        try:
            loop.call_soon_threadsafe(call.start)
            if not call.ended.wait(seconds):
                raise SoftTimeLimitExceeded(f"the handler took longer than {seconds:g} s")
        except BaseException as error:
            if call.withdraw():
                # Another coroutine blocks the loop, so this one has not begun, and now it never will.
                self._leave(loop)
                if isinstance(error, SoftTimeLimitExceeded):
                    raise NotBegun(f"another coroutine has blocked the event loop for {seconds:.3g} s") from None
                raise
            loop.call_soon_threadsafe(call.cancel)
            ended = False
            try:
                # It may use the batch's connection until it has ended.
                ended = call.ended.wait(CANCEL_TIMEOUT)
            finally:
                if not ended:
                    self._leave(loop)
            raise
        if call.error is not None:
            raise call.error
        return call.returned

    def _leave(self, loop: asyncio.AbstractEventLoop) -> None:
        """Give later coroutines a new loop: one on this loop blocks it, or did not end when it was cancelled."""
        with self._starting:
            if self._loop is loop:
                self._loop = None

    def _started(self) -> asyncio.AbstractEventLoop:
        with self._starting:
            if self._loop is None or self._loop.is_closed():
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=_serve, args=(self._loop,), name="taskbridge-event-loop", daemon=True).start()
            return self._loop


class _Call:
    """One awaitable as a task of the loop; `start` and `cancel` are called in the loop's thread.

    `asyncio.run_coroutine_threadsafe` does not fit: its future ends as soon as it is cancelled, while the coroutine is
    still running.
    """

    def __init__(self, awaitable: Awaitable[Any]) -> None:
        self._awaitable = awaitable
        self._task: asyncio.Task[None] | None = None
        self._beginning: Final = threading.Lock()
        self._withdrawn = False
        self.ended: Final = threading.Event()
        self.error: BaseException | None = None
        self.returned: Any = None

    def start(self) -> None:
        with self._beginning:
            if self._withdrawn:
                return
            self._task = asyncio.get_running_loop().create_task(self._run())
            self._task.add_done_callback(self._end)

    def withdraw(self) -> bool:
        """Prevent it from beginning; return False if it has begun. Any thread may call this."""
        with self._beginning:
            self._withdrawn = self._task is None
        if self._withdrawn and inspect.iscoroutine(self._awaitable):
            self._awaitable.close()
        return self._withdrawn

    def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _end(self, task: asyncio.Task[None]) -> None:
        if task.cancelled() and self.error is None:
            # Something on the loop cancelled all tasks, this one before its first step.
            self.error = asyncio.CancelledError("cancelled before it began")
            if inspect.iscoroutine(self._awaitable):
                self._awaitable.close()
        self.ended.set()

    async def _run(self) -> None:
        try:
            self.returned = await self._awaitable
        except BaseException as error:
            self.error = error


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    while not loop.is_closed():
        try:
            loop.run_forever()
        except BaseException as error:
            # For example SystemExit, raised by a task that the handler started and did not wait for.
            log_error(log, error, "a task on the event loop tried to end the process; the loop continues")
