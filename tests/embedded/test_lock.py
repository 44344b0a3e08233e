"""One holder at a time, and a look at the lock disturbs nobody."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from taskbridge.embedded.lock import hold, holder
from taskbridge.errors import AlreadyRunning


def test_the_holder_is_told_and_the_lock_ends_with_the_block(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    assert holder(path) is None
    with hold(path, tmp_path):
        assert holder(path) == os.getpid()
        with pytest.raises(AlreadyRunning, match=f"pid {os.getpid()}"):
            hold(path, tmp_path).__enter__()
    assert holder(path) is None


def test_those_who_only_look_never_keep_a_server_from_starting(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    stop = threading.Event()

    def look() -> None:
        while not stop.is_set():
            holder(path)

    with ThreadPoolExecutor(4) as threads:
        for _ in range(4):
            threads.submit(look)
        for _ in range(100):
            with hold(path, tmp_path):
                pass
        stop.set()


def test_a_link_in_place_of_the_lock_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("kept")
    (tmp_path / "lock").symlink_to(victim)
    with pytest.raises(OSError, match="symbolic link"):
        hold(tmp_path / "lock", tmp_path).__enter__()
    assert victim.read_text() == "kept"
