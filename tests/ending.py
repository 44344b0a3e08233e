"""Ending what a test has started."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from contextlib import suppress

import psutil

__all__ = ["kill_all"]


def kill_all(processes: Iterable[subprocess.Popen[bytes]]) -> None:
    """Kill processes with all that they have started, and wait for them."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            for child in psutil.Process(process.pid).children(recursive=True):
                with suppress(psutil.NoSuchProcess):
                    child.kill()
        process.kill()
        process.wait()
