"""Lines of the log that many requests in a row would write, of which one a minute is enough."""

from __future__ import annotations

import time
from typing import Final

__all__ = ["LogThrottle"]

EVERY: Final = 60.0
"""Seconds between two lines of one kind."""


class LogThrottle:
    """Counts what happens, by kind, and says when the next line about it is due. The kinds are few."""

    def __init__(self) -> None:
        self._kinds: dict[object, tuple[int, float]] = {}
        """By kind: how many came since the last line, and when (`time.monotonic`) the next one may come."""

    def counted(self, kind: object) -> int:
        """Count one of a kind, which can be a key of a dict.

        Return how many came since the last line, with this one, where a line is due now; 0 otherwise.
        """
        count, silent_until = self._kinds.get(kind, (0, 0.0))
        count, now = count + 1, time.monotonic()
        is_due = now >= silent_until
        self._kinds[kind] = (0, now + EVERY) if is_due else (count, silent_until)
        return count if is_due else 0
