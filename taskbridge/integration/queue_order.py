"""In which order a worker looks at its queues, where Redis is the broker."""

from __future__ import annotations

from collections.abc import Iterable

from taskbridge.gate import OURS

__all__ = ["QueueOrder"]


class QueueOrder:
    """Each queue of the app has its turn, as kombu's own `round_robin` gives it, and our queues have one together.

    Within that turn first events come before continuations. kombu makes one of these for each connection; the methods
    have the names of kombu's own orders (`kombu.utils.scheduling`).
    """

    def __init__(self) -> None:
        self._turns: list[list[str]] = []

    def update(self, queues: Iterable[str]) -> None:
        """Begin anew with these queues."""
        names = sorted(queues)
        ours = [name for name in names if name.startswith(OURS)]
        self._turns = [turn for turn in (ours, *([name] for name in names if name not in ours)) if turn]

    def consume(self, count: int) -> list[str]:
        """Return the first `count` queues, in the order in which to look at them now."""
        return [name for turn in self._turns for name in turn][:count]

    def rotate(self, last_used: str) -> str:
        """Let the others come before the queue that a message was taken from."""
        self._turns.sort(key=lambda turn: last_used in turn)
        return last_used
