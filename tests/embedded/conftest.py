from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from taskbridge.embedded import directories, serve
from taskbridge.testing import servers
from tests.waiting import wait_until

from .processes import descendants, started_since

if not Path("/proc/self/stat").exists():
    pytest.skip("looks at processes through /proc, which this system does not have", allow_module_level=True)


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """A directory that every user may enter, unlike pytest's own: there the cluster lies in the data directory."""
    with servers.open_directory() as directory:
        yield directory


@pytest.fixture
def data_dir(open_directory: Path) -> Path:
    return open_directory / "data"


@pytest.fixture(scope="session")
def _made_before() -> Iterator[Path]:
    with servers.open_directory() as directory:
        with serve(directory / "data", durable=False):
            pass
        yield directory / "data"


@pytest.fixture
def data_dir_with_cluster(open_directory: Path, _made_before: Path) -> Path:
    """A data directory that was served before: initdb takes longer than most tests."""
    subprocess.run(["/bin/cp", "-a", _made_before, open_directory / "data"], check=True)
    return open_directory / "data"


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch, open_directory: Path) -> Path:
    """Stands for /var/lib/taskbridge, so that nothing of a test stays there."""
    directory = open_directory / "shared"
    monkeypatch.setattr(directories, "SHARED", directory)
    return directory


@pytest.fixture(autouse=True)
def _nothing_left_running() -> Iterator[None]:
    before = descendants(os.getpid())
    yield
    wait_until(lambda: not started_since(before), "nothing was left running")
