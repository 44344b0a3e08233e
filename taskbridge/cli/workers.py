"""The worker processes of `taskbridge up`: started, awaited, restarted, stopped."""

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
from taskbridge.integration.remote import ask
from taskbridge.settings import Settings

__all__ = ["Workers"]

READY_SECONDS: Final = 60.0
QUICK_SECONDS: Final = 30.0
"""A worker that lives shorter than this has died soon after its start."""
PAUSES: Final = (0.0, 1.0, 2.0, 4.0)
"""Seconds before the second process of a worker that died soon after its start, the third, and so on to the fifth."""
_STOP: Final = ((signal.SIGTERM, 10.0), (signal.SIGQUIT, 3.0))
"""A warm shutdown ends the runs that are under way. A run that a cold one cuts off comes back at its deadline."""
HURRY_SECONDS: Final = 0.5


class _Worker:
    """One worker: its present process, and what is known of those before."""

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
        """Start the process; its output is appended to the log."""
        command = [sys.executable, "-m", "celery", "-A", "taskbridge", "worker", "-n", f"{self.name}@%h"]
        command += ["--concurrency", str(self._concurrency), "--loglevel", "INFO"]
        # Workers would ask each other for news at their start: that takes a second, and nothing here needs it.
        command += ["--without-mingle", "--without-gossip"]
        self.started = time.monotonic()
        with open_log(self.log) as output:
            self._log_start = output.seek(0, 2)
            return Guarded(command, stop=_STOP, output=output, environment=self._environment())

    def _environment(self) -> dict[str, str]:
        """Return ours. Where metrics are served, each worker has a port of its own, the first the one that is set."""
        port = Settings.read().metrics_port
        return {**os.environ, "TASKBRIDGE_METRICS_PORT": str(port + self._number - 1 if port else 0)}

    def end_of_log(self) -> str:
        """Return the end of what the process wrote, and where its log is."""
        return f"the end of its log, {self.log}:\n{tail(self.log, self._log_start)}"


class Workers(ExitStack):
    """Worker processes that live as long as the `with` block.

    Args:
        count: how many processes.
        concurrency: runs at a time of each.
        data_dir: where `worker-1.log` and so on lie.
        announce: takes a line of text when a worker died and when it is started again.
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
            Unavailable: one ended, or does not answer within a minute; the message has the end of its log.
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
            for node in ask(app, "ping", list(missing), seconds=0.5):
                missing.pop(node, None)

    def watch(self) -> None:
        """Start again the workers that died.

        Raises:
            Unavailable: one died five times in a row, each time within half a minute of its start.
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
        """Announce that a worker ended, and set when its next process starts.

        Raises:
            Unavailable: it ended too often soon after its start.
        """
        quick = now - worker.started < QUICK_SECONDS
        worker.quick_deaths = worker.quick_deaths + 1 if quick else 1
        text = f"{worker.name} (pid {worker.process.pid}) ended with status {status}"
        if worker.quick_deaths > len(PAUSES):
            raise Unavailable(f"{text}, {worker.quick_deaths} times soon after its start; {worker.end_of_log()}")
        pause = PAUSES[worker.quick_deaths - 1]
        worker.start_at = now + pause
        self.announce(f"{text}; it is started again{f' in {pause:.0f} s' if pause else ''}; {worker.end_of_log()}")

    def _stop(self) -> None:
        """Stop all at the same time. After a second signal each gets its next stop signal every `HURRY_SECONDS`."""
        interrupts.stopping()
        with ThreadPoolExecutor(max(1, len(self._workers))) as pool:
            left = {pool.submit(worker.process.stop) for worker in self._workers}
            while left:
                left = wait(left, timeout=HURRY_SECONDS).not_done
                if interrupts.is_hurried():
                    for worker in self._workers:
                        worker.process.hurry()
