"""Throttling of repeated log messages, of which one a minute is enough."""

from __future__ import annotations

import time
from typing import Final

__all__ = ["LogThrottle"]

EVERY: Final = 60.0
"""Seconds between two messages of one kind."""


class LogThrottle:
    """Counts occurrences by kind, and says when the next log message about a kind is due. There are few kinds."""

    def __init__(self) -> None:
        self._kinds: dict[object, tuple[int, float]] = {}
        """By kind: how many occurred since the last message, and when (`time.monotonic`) the next one is allowed."""

    def counted(self, kind: object) -> int:
        """Count an occurrence of a kind (any hashable value).

        Returns the number since the last message, including this one, if a message is due now; otherwise 0.
        """
        count, silent_until = self._kinds.get(kind, (0, 0.0))
        count, now = count + 1, time.monotonic()
        is_due = now >= silent_until
        self._kinds[kind] = (0, now + EVERY) if is_due else (count, silent_until)
        return count if is_due else 0
