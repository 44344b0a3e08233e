"""Where temporary files of tests lie: in memory, where there is room. A file system on a disk makes tests much slower.

Each database of a test is some 300 files, which are there for as long as the test. The servers of tests flush nothing
to a disk in any case.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Final

import psutil

__all__ = ["keep_temporary_files_in_memory"]

MEMORY: Final = Path("/dev/shm")  # noqa: S108 - it is where Linux has it; what is made there is our own
"""A file system in memory, on Linux."""
LEAST_FREE: Final = 4 * 2**30
"""Bytes that must be free there, and as memory: some servers, each with a write-ahead log."""
PREFIX: Final = "taskbridge-tests-"


def keep_temporary_files_in_memory() -> None:
    """Let this process and those that it starts make their temporary files in memory; they are gone when it ends.

    A `TMPDIR` that is set stays, and so does the default where there is too little room, or programs may not run.
    """
    if "TMPDIR" in os.environ or not _has_room():
        return
    _remove_those_of_the_dead()
    made = MEMORY / f"{PREFIX}{os.getpid()}"
    made.mkdir(exist_ok=True)
    os.environ["TMPDIR"], tempfile.tempdir = str(made), None
    # After multiprocessing has removed its own directory there, at -100.
    Finalize(None, shutil.rmtree, args=(made, True), exitpriority=-200)


def _has_room() -> bool:
    try:
        found = os.statvfs(MEMORY)
    except OSError:
        return False
    free = min(found.f_bavail * found.f_frsize, psutil.virtual_memory().available)
    return free >= LEAST_FREE and os.access(MEMORY, os.W_OK) and not found.f_flag & os.ST_NOEXEC


def _remove_those_of_the_dead() -> None:
    for one in MEMORY.glob(f"{PREFIX}*"):
        number = one.name.removeprefix(PREFIX)
        if number.isdecimal() and not psutil.pid_exists(int(number)):
            shutil.rmtree(one, ignore_errors=True)
