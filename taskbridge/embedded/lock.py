"""Only one process serves a data directory: a file lock, which the kernel releases however that process ends."""

from __future__ import annotations

import fcntl
import os
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from taskbridge.embedded.files import closed_in_children
from taskbridge.errors import AlreadyRunning

__all__ = ["hold", "is_held"]

ATTEMPTS: Final = 30
"""`is_held` takes the lock for a moment, so `hold` retries, at random intervals."""

# Lock files held by this process. If a child kept one open, the lock would outlive this process.
_held = closed_in_children()


@contextmanager
def hold(path: Path, data_dir: Path) -> Iterator[None]:
    """Hold the lock file `path`, and write our pid to it.

    Raises:
        AlreadyRunning: another process serves `data_dir`.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    owner = os.getpid()
    _held.add(descriptor)
    try:
        _take(descriptor, data_dir)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(owner).encode(), 0)
        yield
    finally:
        if owner == os.getpid():
            _held.discard(descriptor)
            os.close(descriptor)


def is_held(path: Path) -> bool:
    """Whether a process holds the lock file `path`. This creates nothing."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except (FileNotFoundError, NotADirectoryError):
        return False
    try:
        # Shared, so that two callers do not take each other for the holder.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _take(descriptor: int, data_dir: Path) -> None:
    for _ in range(ATTEMPTS):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(random.uniform(0.001, 0.01))  # noqa: S311
        else:
            return
    pid = os.pread(descriptor, 32, 0).decode()
    raise AlreadyRunning(
        f"{data_dir} is in use by another process (pid {pid}): stop that process, use its servers "
        "(`taskbridge env` prints their URLs), or choose another data directory"
    )
