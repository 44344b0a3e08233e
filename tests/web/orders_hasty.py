"""The receiver of `tests.web.orders` without what it promises: it answers before the commit."""

from __future__ import annotations

import asyncio

from taskbridge.web.committing import Brought, GroupCommit
from tests.web.orders import app

__all__ = ["app"]

_store = GroupCommit.store
_tasks: set[asyncio.Task[bool]] = set()


async def _answer_first(self: GroupCommit, brought: Brought) -> bool:
    task = asyncio.get_running_loop().create_task(_store(self, brought))
    _tasks.add(task)
    task.add_done_callback(_forget)
    return True


def _forget(task: asyncio.Task[bool]) -> None:
    _tasks.discard(task)
    if not task.cancelled():
        task.exception()


GroupCommit.store = _answer_first  # type: ignore[method-assign]
