"""Private files, logs, and file descriptors that forked children must close."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import BinaryIO

_LOG_KEPT_BYTES = 10_000_000
_TAIL_BYTES = 4_000


def write_private(path: Path, text: str) -> None:
    """Write `path` atomically, with mode 600, and sync it to disk."""
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(descriptor)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def open_log(path: Path) -> BinaryIO:
    """Open a log for appending, with mode 600; a log of more than 10 MB is first renamed to `.1`."""
    if path.exists() and path.stat().st_size > _LOG_KEPT_BYTES:
        path.replace(path.with_name(f"{path.name}.1"))
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "ab")


def closed_in_children() -> set[int]:
    """Return an empty set; forked children close the file descriptors that it contains when they are forked."""
    descriptors: set[int] = set()

    def close() -> None:
        while descriptors:
            os.close(descriptors.pop())

    os.register_at_fork(after_in_child=close)
    return descriptors


def tail(path: Path, start: int) -> str:
    """Return the last lines, at most 15, that were written to `path` after byte `start`."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(start, size - _TAIL_BYTES))
        lines = file.read().decode(errors="replace").splitlines()
    return "\n".join(lines[-15:])
