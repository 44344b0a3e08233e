"""The one way in which tests wait: for a condition, with a deadline that is longer in CI."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")

TIME_FACTOR = 4.0 if os.environ.get("CI") else 1.0
"""How many times as long as usual tests wait."""
SHORTEST_PAUSE = 0.01
LONGEST_PAUSE = 0.1
"""Seconds between two looks at a condition, at first and later: looks take time from what is waited for."""


def wait_until(condition: Callable[[], T], what: str, seconds: float = 30.0) -> T:
    """Return the first true value of `condition`; fail after `seconds` (four times as long in CI)."""
    deadline = time.monotonic() + seconds * TIME_FACTOR
    pause = SHORTEST_PAUSE
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds * TIME_FACTOR:g} s: {what}")
        time.sleep(pause)
        pause = min(LONGEST_PAUSE, 1.1 * pause)


@contextmanager
def taking_at_most(seconds: float) -> Iterator[None]:
    """Fail if the block takes longer than `seconds` (four times as long in CI): for waits that would be far longer."""
    began = time.monotonic()
    yield
    took = time.monotonic() - began
    assert took < seconds * TIME_FACTOR, f"{took:.2f} s, not within {seconds * TIME_FACTOR:g} s"
