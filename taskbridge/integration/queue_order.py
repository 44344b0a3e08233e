"""The order in which a worker polls its queues, if Redis is the broker."""

from __future__ import annotations

from collections.abc import Iterable

from taskbridge.gate import OURS, Constant

__all__ = ["QueueOrder"]


class QueueOrder:
    """Round robin over the app's queues, as in kombu, with our two queues sharing one turn.

    Within that turn, first events come before continuations, but at most `FIRSTS_IN_A_ROW` in a row: a storm of first
    events must not starve the continuations. kombu creates one of these for each connection; the methods are named as
    in kombu's own strategies (`kombu.utils.scheduling`).
    """

    def __init__(self) -> None:
        self._turns: list[list[str]] = []
        self._ours: list[str] = []
        self._in_a_row = 0

    def update(self, queues: Iterable[str]) -> None:
        """Start over with these queues."""
        names = sorted(queues)
        self._ours = [name for name in names if name.startswith(OURS)]
        others = [[name] for name in names if name not in self._ours]
        self._turns = [turn for turn in (self._ours, *others) if turn]

    def consume(self, count: int) -> list[str]:
        """Return the first `count` queues, in the order in which to poll them."""
        return [name for turn in self._turns for name in self._ordered(turn)][:count]

    def rotate(self, last_used: str) -> str:
        """Move the queue that a message was taken from behind the others."""
        if last_used in self._ours:
            self._in_a_row = self._in_a_row + 1 if last_used == self._ours[0] else 0
        self._turns.sort(key=lambda turn: last_used in turn)
        return last_used

    def _ordered(self, turn: list[str]) -> list[str]:
        return turn[::-1] if turn is self._ours and self._in_a_row >= Constant.FIRSTS_IN_A_ROW else turn
