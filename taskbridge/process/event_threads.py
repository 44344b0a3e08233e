"""The threads that send the events of coroutines, and the limit on events that wait for one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from threading import Condition
from typing import Final, TypeVar

from taskbridge.errors import Unavailable

__all__ = ["EventThreads"]

T = TypeVar("T")

MOST_WAITING: Final = 100_000
"""Events that may wait, or be in progress, in one process; more are refused."""


class EventThreads:
    """Threads for events. A cancelled call is not executed, and its events take no memory."""

    def __init__(self, count: int, name: str) -> None:
        self._threads = ThreadPoolExecutor(count, name)
        self._changed = Condition()
        self._waiting = 0

    def submit(self, call: Callable[[], T], events: int) -> Future[T]:
        """Execute a call for so many events in one of the threads, without waiting for it.

        Raises:
            Unavailable: too many others are waiting.
        """
        weight, answer = max(1, events), Future[T]()
        queued: list[Callable[[], T]] = [partial(copy_context().run, call)]

        def execute() -> None:
            try:
                if answer.set_running_or_notify_cancel():
                    answer.set_result(queued.pop()())
            except BaseException as error:
                answer.set_exception(error)
            finally:
                self._count(-1 if answer.cancelled() else -weight)

        def forget(_: Future[T]) -> None:
            # The executor keeps a cancelled call until its turn, so its entry counts as one event.
            if answer.cancelled():
                queued.clear()
                self._count(1 - weight)

        self._count(weight)
        answer.add_done_callback(forget)
        try:
            self._threads.submit(execute)
        except BaseException:
            self._count(-weight)
            raise
        return answer

    async def run(self, call: Callable[[], T], events: int) -> T:
        """Execute a call for so many events in one of the threads, and wait for it.

        Raises:
            Unavailable: too many others are waiting.
        """
        return await asyncio.wrap_future(self.submit(call, events))

    def wait(self, seconds: float) -> bool:
        """Wait until no event is waiting or in progress; return False if that takes longer than `seconds`."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._waiting, seconds)

    def shutdown(self) -> None:
        """Accept no more calls, and do not wait for those in progress."""
        self._threads.shutdown(wait=False)

    def _count(self, events: int) -> None:
        with self._changed:
            # A call larger than the limit is accepted if it is alone.
            if events > 0 and self._waiting and self._waiting + events > MOST_WAITING:
                raise Unavailable("too many events are waiting to be sent")
            self._waiting += events
            self._changed.notify_all()
