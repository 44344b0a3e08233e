"""One process serves a data directory: a file lock that the kernel frees however that process ends."""

from __future__ import annotations

import fcntl
import os
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from taskbridge.embedded.files import closed_in_children
from taskbridge.errors import AlreadyRunning

# Lock files held by this process. The lock would outlive it in a child that has one open.
_held = closed_in_children()


@contextmanager
def hold(path: Path, data_dir: Path) -> Iterator[None]:
    """Hold the lock file `path`, which then contains our pid.

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


def holder(path: Path) -> int | None:
    """Return the pid of the process that holds the lock file `path`, or None. Nothing is created."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        return _read_pid(descriptor) if _held_by_a_server(descriptor) else None
    finally:
        os.close(descriptor)


def _take(descriptor: int, data_dir: Path) -> None:
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if _held_by_a_server(descriptor):
                pid = _read_pid(descriptor)
                raise AlreadyRunning(
                    f"{data_dir} is served by another process (pid {pid}): stop that one first, use its servers "
                    "(`taskbridge env` prints their URLs), or choose another data directory"
                ) from None
            # Another process only looked whether it is held. Waits of random length keep two of these out of step.
            time.sleep(random.uniform(0.001, 0.01))  # noqa: S311
        else:
            return


def _held_by_a_server(descriptor: int) -> bool:
    """Whether a server holds the lock. A server's is exclusive; a look takes a shared one, which no other look sees."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    return False


def _read_pid(descriptor: int) -> int | None:
    text = os.pread(descriptor, 32, 0)
    return int(text) if text.isdigit() else None
