"""Start, restart and stop the worker processes of `taskbridge up`."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from celery.utils.nodenames import host_format

from taskbridge.cli import interrupts
from taskbridge.embedded import Guarded
from taskbridge.embedded.files import open_log, tail
from taskbridge.errors import Unavailable
from taskbridge.integration.app import app
from taskbridge.settings import Settings

__all__ = ["Workers"]

READY_SECONDS: Final = 60.0
QUICK_SECONDS: Final = 30.0
"""A worker that ends sooner than this has died soon after its start."""
PAUSES: Final = (0.0, 1.0, 2.0, 4.0)
"""Seconds before each restart of a worker that keeps dying soon after its start."""
_STOP: Final = ((signal.SIGTERM, 10.0), (signal.SIGQUIT, 3.0))
"""A warm shutdown completes current runs. A run that a cold shutdown interrupts is restarted at its deadline."""
HURRY_SECONDS: Final = 0.5


class _Worker:
    """A worker: its current process, and how often earlier ones died."""

    def __init__(self, number: int, concurrency: int, data_dir: Path) -> None:
        self._number = number
        self.name = f"worker{number}"
        self.node = host_format(f"{self.name}@%h")
        self.log = data_dir / f"worker-{number}.log"
        self.quick_deaths = 0
        self.start_at = 0.0
        self._concurrency = concurrency
        self._log_start = 0
        self.process = self.start()

    def start(self) -> Guarded:
        """Start the process, which appends its output to the log."""
        command = [sys.executable, "-m", "celery", "-A", "taskbridge", "worker", "-n", f"{self.name}@%h"]
        command += ["--concurrency", str(self._concurrency), "--loglevel", "INFO"]
        # Synchronizing with other workers takes a second at startup, and is not needed here.
        command += ["--without-mingle", "--without-gossip"]
        self.started = time.monotonic()
        with open_log(self.log) as output:
            self._log_start = output.seek(0, 2)
            return Guarded(command, stop=_STOP, output=output, environment=self._environment())

    def _environment(self) -> dict[str, str]:
        """Return our environment. If metrics are served, each worker gets its own port, starting with the one set."""
        port = Settings.read().metrics_port
        return {**os.environ, "TASKBRIDGE_METRICS_PORT": str(port + self._number - 1 if port else 0)}

    def end_of_log(self) -> str:
        """Return the end of the process's output, and where its log is."""
        return f"the end of its log, {self.log}:\n{tail(self.log, self._log_start)}"


class Workers(ExitStack):
    """Worker processes that run during the `with` block.

    Args:
        count: the number of processes.
        concurrency: how many runs each performs at a time.
        data_dir: the directory for `worker-1.log` and so on.
        announce: receives a line of text when a worker has died.
    """

    def __init__(self, count: int, concurrency: int, data_dir: Path, announce: Callable[[str], None]) -> None:
        super().__init__()
        self.announce = announce
        self._workers: list[_Worker] = []
        with ExitStack() as stopping:
            stopping.callback(self._stop)
            for number in range(1, count + 1):
                self._workers.append(_Worker(number, concurrency, data_dir))
            self.push(stopping.pop_all())

    def wait_until_ready(self) -> None:
        """Wait until every worker answers.

        Raises:
            Unavailable: one ended, or did not answer within a minute; the message has the end of its log.
        """
        deadline = time.monotonic() + READY_SECONDS
        missing = {worker.node: worker for worker in self._workers}
        while missing:
            interrupts.check()
            for worker in missing.values():
                status = worker.process.poll()
                if status is not None:
                    raise Unavailable(f"{worker.name} ended with status {status}; {worker.end_of_log()}")
                if time.monotonic() > deadline:
                    raise Unavailable(
                        f"{worker.name} does not answer after {READY_SECONDS:.0f} s; {worker.end_of_log()}"
                    )
            for reply in app.control.ping([*missing], timeout=0.5) or []:
                missing = {node: worker for node, worker in missing.items() if node not in reply}

    def watch(self) -> None:
        """Restart workers that have died.

        Raises:
            Unavailable: a worker died five times in a row, each time within half a minute of its start.
        """
        now = time.monotonic()
        for worker in self._workers:
            status = worker.process.poll()
            if status is None:
                continue
            if not worker.start_at:
                self._note_end(worker, status, now)
            elif now >= worker.start_at:
                worker.start_at = 0.0
                worker.process = worker.start()

    def _note_end(self, worker: _Worker, status: int, now: float) -> None:
        """Announce that a worker has ended, and decide when to restart it.

        Raises:
            Unavailable: it has ended too often soon after its start.
        """
        quick = now - worker.started < QUICK_SECONDS
        worker.quick_deaths = worker.quick_deaths + 1 if quick else 1
        text = f"{worker.name} (pid {worker.process.pid}) ended with status {status}"
        if worker.quick_deaths > len(PAUSES):
            raise Unavailable(f"{text}, {worker.quick_deaths} times shortly after starting; {worker.end_of_log()}")
        pause = PAUSES[worker.quick_deaths - 1]
        worker.start_at = now + pause
        self.announce(f"{text}; restarting it{f' in {pause:.0f} s' if pause else ''}; {worker.end_of_log()}")

    def _stop(self) -> None:
        """Stop all workers at once. After a second signal, each gets its next stop signal every `HURRY_SECONDS`."""
        interrupts.stopping()
        with ThreadPoolExecutor(max(1, len(self._workers))) as pool:
            left = {pool.submit(worker.process.stop) for worker in self._workers}
            while left:
                left = wait(left, timeout=HURRY_SECONDS).not_done
                if interrupts.is_hurried():
                    for worker in self._workers:
                        worker.process.hurry()
