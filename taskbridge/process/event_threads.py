"""The threads that send the events of coroutines, and the limit on events that wait for one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from threading import Condition, Lock
from typing import Final, Generic, TypeVar

from taskbridge.errors import Unavailable

__all__ = ["EventThreads"]

T = TypeVar("T")

MOST_WAITING: Final = 100_000
"""Events that may wait, or be in progress, in one process; more are refused."""


class EventThreads:
    """Threads for events. A cancelled call is not executed, and its events take no memory."""

    def __init__(self, count: int, name: str) -> None:
        self._threads = ThreadPoolExecutor(count, name)
        self._alone = Condition()
        self._waiting = 0

    def submit(self, call: Callable[[], T], events: int) -> Future[T]:
        """Execute a call for so many events in one of the threads, without waiting for it.

        Raises:
            Unavailable: too many others are waiting.
        """
        return self._begin(call, events).answer

    async def run(self, call: Callable[[], T], events: int) -> T:
        """Execute a call for so many events in one of the threads, and wait for it.

        Raises:
            Unavailable: too many others are waiting.
        """
        job = self._begin(call, events)
        try:
            return await asyncio.wrap_future(job.answer)
        except asyncio.CancelledError:
            job.forget()
            raise

    def _begin(self, call: Callable[[], T], events: int) -> _Job[T]:
        job = _Job(self, call, max(1, events))
        with self._alone:
            # A call larger than the limit is accepted if it is alone.
            if self._waiting and self._waiting + job.weight > MOST_WAITING:
                raise Unavailable("too many events are waiting to be sent")
            self._waiting += job.weight
        try:
            self._threads.submit(job.run)
        except BaseException:
            self.leave(job.weight)
            raise
        return job

    def wait(self, seconds: float) -> bool:
        """Wait until no event is waiting or in progress; return False if that takes longer than `seconds`."""
        with self._alone:
            return self._alone.wait_for(lambda: not self._waiting, seconds)

    def shutdown(self) -> None:
        """Accept no more calls, and do not wait for those in progress."""
        self._threads.shutdown(wait=False)

    def leave(self, weight: int) -> None:
        """Subtract so many events from the count."""
        with self._alone:
            self._waiting -= weight
            if not self._waiting:
                self._alone.notify_all()


class _Job(Generic[T]):
    """A call that waits for its thread. The queue keeps it until its turn, even if it has been cancelled."""

    def __init__(self, threads: EventThreads, call: Callable[[], T], weight: int) -> None:
        self._threads = threads
        self._alone = Lock()
        self._call: Callable[[], T] | None = partial(copy_context().run, call)
        self.answer = Future[T]()
        self.weight = weight

    def run(self) -> None:
        """Execute the call, unless it was cancelled."""
        with self._alone:
            call, self._call = self._call, None
        try:
            if call is not None and self.answer.set_running_or_notify_cancel():
                self.answer.set_result(call())
        except BaseException as error:
            self.answer.set_exception(error)
        finally:
            self._threads.leave(self.weight)

    def forget(self) -> None:
        """Cancel the call, unless it is in progress; the entry left in the queue counts as one event."""
        with self._alone:
            if self._call is None:
                return
            self._call = None
            freed, self.weight = self.weight - 1, 1
        self._threads.leave(freed)
