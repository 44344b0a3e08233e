"""What the slots of this process's worker are free for; known in the worker's main process.

A worker whose slots are processes takes a message once one is free for it, and not before. What a busy worker has
reserved is out of the order of the queues: a first event would wait there behind a continuation, invisible to the runs
that would make way for it, and to other workers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from celery.worker import state

__all__ = ["WorkerSlots", "has_reserved", "of_this_worker", "use"]


@dataclass(frozen=True, slots=True)
class WorkerSlots:
    """The slots of a worker: how many it has, and how many are `reserved` for first events.

    `following` is the queue of continuations. `waits`: no message is taken before a slot is free.
    """

    count: Callable[[], int]
    following: str
    reserved: int = 0
    waits: bool = True

    @property
    def idle(self) -> int:
        """How many slots have nothing to do."""
        return self.count() - len(state.reserved_requests)

    @property
    def for_continuations(self) -> int:
        """How many of the idle slots a continuation may have."""
        if not self.reserved:
            return self.idle
        requests = tuple(state.requests.values())
        at_work = len([one for one in requests if one.delivery_info.get("routing_key") == self.following])
        return min(self.idle, max(1, self.count() - self.reserved) - at_work)

    def may_take(self, queue: str) -> bool:
        """Whether a message of this queue may be taken now."""
        if self.waits and self.idle <= 0:
            return False
        return not self.reserved or queue != self.following or self.for_continuations > 0


_slots: list[WorkerSlots] = []


def use(slots: WorkerSlots) -> None:
    """Let these be the slots of this process's worker."""
    _slots[:] = [slots]


def has_reserved(queue: str) -> bool:
    """Whether the worker has a message of this queue that no slot has begun; known where its slots are threads."""
    slots = of_this_worker()
    if slots is None or slots.waits:
        return False
    requests = tuple(state.requests.values())
    return any(one.delivery_info.get("routing_key") == queue and one not in state.active_requests for one in requests)


def of_this_worker() -> WorkerSlots | None:
    """Return the slots of this process's worker; None: it has no worker whose pool has started."""
    return _slots[0] if _slots else None
