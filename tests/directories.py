"""Directories for embedded servers: Postgres does not run as root, and pytest's own directories let nobody else in."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def open_directory() -> Iterator[Path]:
    """An empty directory that every user may enter, so that the cluster of an embedded Postgres lies in it."""
    with tempfile.TemporaryDirectory(prefix="taskbridge-") as name:
        made = Path(name).resolve()
        made.chmod(0o755)
        yield made
