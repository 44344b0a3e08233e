"""The worker processes of `taskbridge up`: start and stop them, and watch them and the state of the pipelines."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from celery.utils.nodenames import host_format

from taskbridge.cli import console, interrupts
from taskbridge.cli.interrupts import Interrupted
from taskbridge.cli.status import totals_line
from taskbridge.common.server_errors import translated_errors
from taskbridge.embedded import Guarded
from taskbridge.embedded.files import open_log, tail
from taskbridge.errors import Unavailable
from taskbridge.integration.app import app
from taskbridge.observe.context import Context
from taskbridge.observe.health import health
from taskbridge.settings import Settings

if TYPE_CHECKING:
    from taskbridge.process.runtime import Runtime

__all__ = ["Worker", "has_pending", "is_idle", "wait_until_ready", "watch", "workers"]

READY_SECONDS: Final = 60.0
QUICK_SECONDS: Final = 30.0
"""A worker that ends sooner than this has died soon after its start."""
QUICK_DEATHS: Final = 5
POLL_SECONDS: Final = 0.1
POLLS_SHARE: Final = 0.1
"""The maximum share of the time that is spent on looking at the state, unless a look takes long."""
MOST_POLL_SECONDS: Final = 2.0
"""A dead worker is restarted, and a timeout noticed, at most this long after a look."""
LOST_SECONDS: Final = 30.0
_STOP: Final = ((signal.SIGTERM, 10.0), (signal.SIGQUIT, 3.0))
"""A warm shutdown completes current runs. A run that a cold shutdown interrupts is restarted at its deadline."""


class Worker:
    """A worker process, which appends its output to `worker-1.log` and so on; it is restarted when it dies.

    Args:
        number: counts the workers of this machine, starting with 1.
        concurrency: how many runs it performs at a time.
        data_dir: the directory of the log.
    """

    def __init__(self, number: int, concurrency: int, data_dir: Path) -> None:
        self.name = f"worker{number}"
        self.node = host_format(f"{self.name}@%h")
        self._log = data_dir / f"worker-{number}.log"
        self._command = [sys.executable, "-m", "celery", "-A", "taskbridge", "worker", "-n", f"{self.name}@%h"]
        self._command += ["--concurrency", str(concurrency), "--loglevel", "INFO"]
        # Synchronizing with other workers takes a second at startup, and is not needed here.
        self._command += ["--without-mingle", "--without-gossip"]
        # If metrics are served, each worker gets its own port, starting with the one set.
        port = Settings.read().metrics_port
        self._environment = {**os.environ, "TASKBRIDGE_METRICS_PORT": str(port + number - 1 if port else 0)}
        self._quick_deaths = 0
        self._start()

    def _start(self) -> None:
        self._started = time.monotonic()
        with open_log(self._log) as output:
            self._log_start = output.seek(0, 2)
            self.process = Guarded(self._command, stop=_STOP, output=output, environment=self._environment)

    def end(self) -> str | None:
        """Return how the process has ended, or None while it runs."""
        status = self.process.poll()
        return None if status is None else f"{self.name} (pid {self.process.pid}) ended with status {status}"

    def end_of_log(self) -> str:
        """Return the end of the process's output, and where its log is."""
        return f"the end of its log, {self._log}:\n{tail(self._log, self._log_start)}"

    def watch(self) -> None:
        """Restart the process if it has ended, and say so.

        Raises:
            Unavailable: it died five times in a row, each time within half a minute of its start.
        """
        end = self.end()
        if end is None:
            return
        is_quick = time.monotonic() - self._started < QUICK_SECONDS
        self._quick_deaths = self._quick_deaths + 1 if is_quick else 1
        if self._quick_deaths == QUICK_DEATHS:
            raise Unavailable(f"{end}, {QUICK_DEATHS} times shortly after starting; {self.end_of_log()}")
        console.complain(f"{end}; restarting it; {self.end_of_log()}")
        self._start()


@contextmanager
def workers(count: int, concurrency: int, data_dir: Path) -> Iterator[Sequence[Worker]]:
    """Run workers during the block. At its end, they complete their runs unless another signal comes."""
    started: list[Worker] = []
    try:
        for number in range(1, count + 1):
            started.append(Worker(number, concurrency, data_dir))  # noqa: PERF401 - those before an error are stopped
        yield started
    finally:
        _stop(started)


def _stop(started: Sequence[Worker]) -> None:
    """Stop all workers at once. Each further signal makes them get their next stop signal without waiting."""
    with ThreadPoolExecutor(max(1, len(started))) as pool:
        stopping = {pool.submit(worker.process.stop) for worker in started}
        while stopping:
            try:
                stopping = wait(stopping).not_done
            except Interrupted:
                for worker in started:
                    worker.process.hurry()


def wait_until_ready(started: Sequence[Worker]) -> None:
    """Wait until every worker answers.

    Raises:
        Unavailable: one ended, or did not answer within a minute; the message has the end of its log.
    """
    deadline = time.monotonic() + READY_SECONDS
    missing = {worker.node: worker for worker in started}
    while missing:
        interrupts.check()
        for worker in missing.values():
            if (end := worker.end()) is not None:
                raise Unavailable(f"{end}; {worker.end_of_log()}")
            if time.monotonic() > deadline:
                raise Unavailable(f"{worker.name} does not answer after {READY_SECONDS:.0f} s; {worker.end_of_log()}")
        for reply in app.control.ping([*missing], timeout=0.5) or []:
            missing = {node: worker for node, worker in missing.items() if node not in reply}


def watch(
    runtime: Runtime,
    started: Sequence[Worker],
    finished: Callable[[Runtime], bool],
    timeout: float | None = None,
    *,
    ours: bool,
) -> bool:
    """Watch until `finished` returns true, or for `timeout` seconds; return whether it did.

    Write a line when the totals or findings of the pipelines change. `ours`: the servers belong to this process, and
    nobody else can restart them.

    Raises:
        Unavailable: a worker keeps dying, or our own servers have not answered for half a minute.
    """
    context, shown = Context.of(runtime), None
    began = answered = time.monotonic()
    while timeout is None or time.monotonic() - began < timeout:
        interrupts.check()
        for worker in started:
            worker.watch()
        before = time.monotonic()
        try:
            with translated_errors():
                state, line = _state(context)
                is_finished = finished(runtime)
            answered = before
        except Unavailable as error:
            if ours and before - answered > LOST_SECONDS:
                raise Unavailable(f"{error}. The servers' logs are in the data directory") from error
            is_finished, state, line = False, str(error), f"{error}. Retrying"
        if state != shown:
            shown = state
            console.tell(line)
        if is_finished:
            return True
        time.sleep(min(MOST_POLL_SECONDS, max(POLL_SECONDS, (time.monotonic() - before) / POLLS_SHARE)))
    return False


def _state(context: Context) -> tuple[object, str]:
    """Return what a change of the state changes, and a line about it."""
    found = health(context)
    totals = [totals_line(one) for one in found.pipelines]
    # Sentences contain seconds, so only write a line if other pipelines or tenants are affected.
    affected = {(one.pipeline, one.tenant, one.colour) for one in found.findings}
    return (totals, affected), "; ".join([*totals, *(one.sentence for one in found.findings)])


def is_idle(runtime: Runtime) -> bool:
    """Whether no tenant has a runner or a pending record. A tenant that waits for a delay has both."""
    surveys = runtime.gate.survey(runtime.names(), 1).values()
    return not any(one.runners for one in surveys) and not has_pending(runtime)


def has_pending(runtime: Runtime) -> bool:
    """Whether any tenant has a pending record, due or not."""
    return any(True for name in runtime.names() for _ in runtime.pending(name))
