"""The receiver of `verification.web.orders` without what it promises: it answers before the commit."""

from __future__ import annotations

import asyncio

from taskbridge.store import Incoming
from taskbridge.web.storing import Storage
from verification.web.orders import app

__all__ = ["app"]

_receive = Storage.receive
_tasks: set[asyncio.Task[bool]] = set()


async def _answer_first(self: Storage, incoming: Incoming) -> bool:
    task = asyncio.get_running_loop().create_task(_receive(self, incoming))
    _tasks.add(task)
    task.add_done_callback(_forget)
    return True


def _forget(task: asyncio.Task[bool]) -> None:
    _tasks.discard(task)
    if not task.cancelled():
        task.exception()


Storage.receive = _answer_first  # type: ignore[method-assign]
