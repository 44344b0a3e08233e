"""The few threads in which coroutines send their events, and how many events may wait for one."""

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
"""Events that may wait, or be on their way, in one process; more are refused."""


class EventThreads:
    """Threads for events. What nobody waits for any more is not sent, and its events take no memory."""

    def __init__(self, count: int, name: str) -> None:
        self._threads = ThreadPoolExecutor(count, name)
        self._alone = Condition()
        self._waiting = 0

    def submit(self, call: Callable[[], T], events: int) -> Future[T]:
        """Call in one of the threads, for so many events, and do not wait.

        Raises:
            Unavailable: too many others wait.
        """
        return self._begin(call, events).answer

    async def run(self, call: Callable[[], T], events: int) -> T:
        """Call in one of the threads, for so many events, and wait.

        Raises:
            Unavailable: too many others wait.
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
            # One that is larger than all may be is taken where it is alone.
            if self._waiting and self._waiting + job.weight > MOST_WAITING:
                raise Unavailable("more events wait than can be sent")
            self._waiting += job.weight
        try:
            self._threads.submit(job.run)
        except BaseException:
            self.leave(job.weight)
            raise
        return job

    def wait(self, seconds: float) -> bool:
        """Wait until no event waits or is on its way; return whether that came within so many seconds."""
        with self._alone:
            return self._alone.wait_for(lambda: not self._waiting, seconds)

    def shutdown(self) -> None:
        """Take no more, and do not wait for those that are at work."""
        self._threads.shutdown(wait=False)

    def leave(self, weight: int) -> None:
        """Count so many events less."""
        with self._alone:
            self._waiting -= weight
            if not self._waiting:
                self._alone.notify_all()


class _Job(Generic[T]):
    """A call that waits for its thread. The queue keeps it until its turn, also where nobody waits for it any more."""

    def __init__(self, threads: EventThreads, call: Callable[[], T], weight: int) -> None:
        self._threads = threads
        self._alone = Lock()
        self._call: Callable[[], T] | None = partial(copy_context().run, call)
        self.answer = Future[T]()
        self.weight = weight

    def run(self) -> None:
        """Call, unless it is forgotten."""
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
        """Drop the events, unless they are being sent already; what is left in the queue counts as one."""
        with self._alone:
            if self._call is None:
                return
            self._call = None
            freed, self.weight = self.weight - 1, 1
        self._threads.leave(freed)
