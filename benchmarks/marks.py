"""When handlers were called, noted in one file by all processes of a worker.

A mark is eight bytes: the time in nanoseconds of the Unix epoch. Appending one costs some microseconds, which
affects TaskBridge and the baseline alike; counting them costs one `stat`.
"""

from __future__ import annotations

import os
import time
from array import array
from functools import cache
from pathlib import Path
from typing import Final

__all__ = ["MARKS", "Marks", "mark"]

MARKS: Final = "TASKBRIDGE_BENCH_MARKS"
"""The variable that names the file; without it nothing is noted."""

_BYTES: Final = 8


def mark() -> None:
    """Note that a handler was called now."""
    file = _file()
    if file is not None:
        os.write(file, time.time_ns().to_bytes(_BYTES, "little"))


@cache
def _file() -> int | None:
    name = os.environ.get(MARKS)
    return os.open(name, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600) if name else None


class Marks:
    """The marks in a file, which is made."""

    def __init__(self, file: Path) -> None:
        file.touch()
        self._file = file

    def count(self) -> int:
        """Return how many there are."""
        return self._file.stat().st_size // _BYTES

    def since(self, first: int) -> list[float]:
        """Return the marks after the first `first`, oldest first, in seconds of the Unix epoch."""
        times = array("q", self._file.read_bytes()[first * _BYTES :])
        return [at / 1e9 for at in times]
