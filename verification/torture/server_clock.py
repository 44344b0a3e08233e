"""The wall clock of a server, which can be moved while the server runs. Needs Linux and a C compiler."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

__all__ = ["ServerClock", "compiler"]

_SOURCE = Path(__file__).with_name("server_clock.c")


def compiler() -> str | None:
    """Return the C compiler that makes such clocks; None: there is none, and so no clock can be moved."""
    return shutil.which("cc") or shutil.which("gcc") if sys.platform == "linux" else None


class ServerClock:
    """A clock for each server that is started with `environment`."""

    def __init__(self, directory: Path) -> None:
        """Make it in `directory`."""
        library, self._file = directory / "server_clock.so", directory / "server_clock.seconds"
        subprocess.run([str(compiler()), "-O1", "-shared", "-fPIC", "-o", library, _SOURCE, "-ldl"], check=True)
        self._seconds = 0
        self._file.write_bytes(bytes(8))
        self.environment = {"LD_PRELOAD": str(library), "TORTURE_CLOCK_FILE": str(self._file)}

    def move(self, seconds: int) -> None:
        """Move it by so many seconds, at once."""
        self._seconds += seconds
        with self._file.open("r+b") as file:
            file.write(self._seconds.to_bytes(8, "little", signed=True))
