"""Private files, logs, and file descriptors that a forked child must not keep."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import BinaryIO

from taskbridge.embedded.account import Account

_LOG_KEPT_BYTES = 10_000_000
_TAIL_BYTES = 4_000


def write_private(path: Path, text: str, account: Account | None = None) -> None:
    """Write `path` with mode 600 in one step: a reader sees the old text or the new, never a part.

    The file belongs to `account` where one is given, and is on disk when this returns.
    """
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            if account is not None:
                os.fchown(descriptor, account.uid, account.gid)
            file.write(text)
            file.flush()
            os.fsync(descriptor)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def open_log(path: Path) -> BinaryIO:
    """Open a log of mode 600 for appending; one of more than 10 MB is renamed to `.1` first."""
    if path.exists() and path.stat().st_size > _LOG_KEPT_BYTES:
        path.replace(path.with_name(f"{path.name}.1"))
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "ab")


def closed_in_children() -> set[int]:
    """Return an empty set; a forked child of this process closes the file descriptors that are in it by then."""
    descriptors: set[int] = set()

    def close() -> None:
        while descriptors:
            os.close(descriptors.pop())

    os.register_at_fork(after_in_child=close)
    return descriptors


def tail(path: Path, start: int) -> str:
    """Return what was written to `path` after byte `start`, at most the last 15 lines."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(start, size - _TAIL_BYTES))
        lines = file.read().decode(errors="replace").splitlines()
    return "\n".join(lines[-15:])
