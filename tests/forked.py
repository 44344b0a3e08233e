"""Processes forked from one that has imported what they need, because importing takes most of a start.

Each is what a fresh interpreter would be otherwise: it has its own environment, directory and files, and no thread or
connection of anybody else.
"""

from __future__ import annotations

import gc
import importlib
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

__all__ = ["CELERY", "PROGRAM", "Forked"]

PROGRAM: Final = "taskbridge.cli.main"
CELERY: Final = "celery.__main__"

PRELOADED: Final = (
    PROGRAM,
    *(f"taskbridge.cli.{module}" for module in ("import_csv", "workers")),
    "alembic.command",
    "alembic.util",
    "jsonpath_rfc9535",
    "rich.progress",
    "taskbridge.integration.app",
    "taskbridge.integration.checks",
    "taskbridge.observe.health",
    "taskbridge.observe.inspect",
    "taskbridge.observe.record",
    "taskbridge.observe.metrics",
    "taskbridge.producer.recording",
    "taskbridge.common.server_errors",
    *(f"taskbridge.store.{module}" for module in ("db", "maintenance", "quarantine")),
    # What a worker imports besides.
    "celery.bin.celery",
    "celery.bin.worker",
    "celery.apps.worker",
    "celery.concurrency.prefork",
    "celery.concurrency.thread",
    "celery.worker.consumer",
    "taskbridge.integration.transport",
    "taskbridge.worker.slot",
    "taskbridge.worker.ticker",
)
"""The fork server leaves out what is not there, and says nothing: a name that is wrong costs time, and no test."""

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload([*PRELOADED])


class Forked:
    """A process that calls the `main` of a module; the methods are those of `subprocess.Popen`."""

    def __init__(
        self,
        module: str,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        directory: Path,
        stdout: Path,
        stderr: Path | None = None,
    ) -> None:
        """Start it in a session of its own; without `stderr` all that it says goes to `stdout`."""
        self._process = _context.Process(
            target=_run, args=(module, list(arguments), dict(environment), directory, stdout, stderr)
        )
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if (status := self._process.exitcode) is None:
            raise subprocess.TimeoutExpired(self._process.name, timeout or 0.0)
        return status

    def send_signal(self, number: signal.Signals) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self._process.terminate()

    def kill(self) -> None:
        self._process.kill()


def _run(
    module: str, arguments: list[str], environment: dict[str, str], directory: Path, out: Path, err: Path | None
) -> None:
    # Celery collects garbage before it forks each process of its pool, and would go through all that is preloaded.
    gc.freeze()
    os.setsid()
    for descriptor, path in ((1, out), (2, err)):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) if path else 1
        os.dup2(file, descriptor)
        if path:
            os.close(file)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(directory)
    sys.argv = [module, *arguments]
    sys.path[:0] = [str(directory), *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))]
    importlib.import_module(module).main()
