"""Stop a server that outlived an earlier process of this data directory, and never anything else."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Collection, Sequence
from pathlib import Path

import psutil

from taskbridge.errors import Unavailable

_POLL_SECONDS = 0.02
_KILL_SECONDS = 10.0


def stop_leftover(
    pid: int, programs: Collection[str], path: Path, stages: Sequence[tuple[signal.Signals, float]]
) -> None:
    """Stop the process `pid` where it is ours: each signal of `stages` with its seconds of grace, then SIGKILL.

    It is ours if it runs one of `programs` and was started with `path`, the cluster or the settings file of this data
    directory. A process that has this pid now and is another one is left alone.

    Raises:
        Unavailable: it does not end, or is another user's.
    """
    for number, grace in (*stages, (signal.SIGKILL, _KILL_SECONDS)):
        if not _serves(pid, programs, path):
            return
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            return
        except PermissionError as error:
            raise Unavailable(f"process {pid} still serves {path} and is another user's: stop it first") from error
        deadline = time.monotonic() + grace
        while time.monotonic() < deadline and _serves(pid, programs, path):
            time.sleep(_POLL_SECONDS)
    if _serves(pid, programs, path):
        raise Unavailable(f"process {pid} still serves {path} and does not end, even by SIGKILL: restart the machine")


def kill_orphans(program: str, directory: Path) -> None:
    """Kill every process of `program` that works in `directory`, and wait for its end.

    After PostgreSQL was killed, the process of a connection may go on for hours with its query, and until it ends no
    server starts on the cluster. Call this only when the server itself is gone.

    Raises:
        Unavailable: one does not end.
    """
    for process in psutil.process_iter():
        if not _works_in(process, program, directory):
            continue
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
        deadline = time.monotonic() + _KILL_SECONDS
        while _works_in(process, program, directory):
            if time.monotonic() > deadline:
                raise Unavailable(f"process {process.pid} still uses {directory} and does not end: restart the machine")
            time.sleep(_POLL_SECONDS)


def _works_in(process: psutil.Process, program: str, directory: Path) -> bool:
    try:
        executable = Path(process.exe()).name.removesuffix(" (deleted)")
        return executable == program and process.cwd() == str(directory)
    except psutil.Error:  # it has ended, or is another user's
        return False


def _serves(pid: int, programs: Collection[str], path: Path) -> bool:
    try:
        program, *arguments = psutil.Process(pid).cmdline() or [""]
    except psutil.Error:  # it has ended, or is another user's
        return False
    return Path(program).name in programs and str(path) in arguments
