"""Commands that a test runs to their end, and the end of what it has started."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from tests.waiting import TIME_FACTOR

__all__ = ["ended", "kill_all"]

ROOT = Path(__file__).resolve().parent.parent


def ended(
    command: Sequence[str | Path],
    environment: Mapping[str, str] | None = None,
    directory: Path = ROOT,
    *,
    text: str | None = None,
    seconds: float = 60.0,
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, with `text` as what it reads; its status is not looked at."""
    return subprocess.run(
        command,
        input=text,
        env=environment,
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=seconds * TIME_FACTOR,
        check=False,
    )


def kill_all(processes: Iterable[subprocess.Popen[bytes]]) -> None:
    """Kill processes with all that they have started, and wait for them."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            for child in psutil.Process(process.pid).children(recursive=True):
                with suppress(psutil.NoSuchProcess):
                    child.kill()
        process.kill()
        process.wait()
