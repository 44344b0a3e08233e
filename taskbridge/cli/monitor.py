"""What `taskbridge up` does and shows while it runs."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final, Protocol

from rich.console import Group
from rich.live import Live
from rich.table import Table

from taskbridge.cli import console, environment, interrupts
from taskbridge.cli.status import totals_line
from taskbridge.common.lost_connections import POSTGRES_AWAY
from taskbridge.errors import Unavailable
from taskbridge.process.translation import translated_errors
from taskbridge.store import driver_error

if TYPE_CHECKING:
    from taskbridge.process.runtime import Runtime

__all__ = ["Monitor", "has_pending", "is_idle"]

POLL_SECONDS: Final = 0.1
LOOK_SECONDS: Final = 0.5
LOOKS_SHARE: Final = 0.05
"""The part of the time that is spent on what is shown, at most."""
LOST_SECONDS: Final = 30.0


class Monitored(Protocol):
    """The workers, as far as they are needed here."""

    def watch(self) -> None:
        """Restart those that died."""


class Monitor:
    """Watches the workers and shows what goes on, as a table on a terminal and else as lines.

    Args:
        runtime: the process's runtime.
        workers: the workers to watch.
        ours: whether the servers belong to this process. Nobody else restarts them, so the monitor gives up when they
            have not answered for half a minute.
    """

    def __init__(self, runtime: Runtime, workers: Monitored, *, ours: bool) -> None:
        self._runtime = runtime
        self._workers = workers
        self._ours = ours
        self._answers = environment.answers_of(runtime)
        self._console = console.stderr()
        self._next_look = 0.0
        self._shown: tuple[object, ...] = ()
        self._lost_since: float | None = None

    def announce(self, text: str) -> None:
        """Write a line, above the table if there is one."""
        self._console.print(f"taskbridge: {console.plain(text)}", soft_wrap=True)

    def until(self, finished: Callable[[Runtime], bool], timeout: float | None) -> bool:
        """Go on until `finished` says so, or for `timeout` seconds; return whether it did.

        Raises:
            Unavailable: a worker died again and again, or our own servers no longer answer.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        with ExitStack() as stack:
            live = None
            if self._console.is_terminal:
                live = stack.enter_context(Live(console=self._console, auto_refresh=False, transient=True))
            while True:
                interrupts.check()
                self._workers.watch()
                if self._is_finished(finished, live):
                    return True
                if deadline is not None and time.monotonic() >= deadline:
                    return False
                time.sleep(POLL_SECONDS)

    def _is_finished(self, finished: Callable[[Runtime], bool], live: Live | None) -> bool:
        try:
            with translated_errors():
                self._look(live)
                done = finished(self._runtime)
        except Unavailable as error:
            self._note_lost(error)
            return False
        self._lost_since = None
        return done

    def _note_lost(self, error: Unavailable) -> None:
        now, cause = time.monotonic(), driver_error(error.__cause__)
        # A server that reports a lock time-out answers all the same.
        answers = cause is not None and bool(cause.sqlstate) and not str(cause.sqlstate).startswith(POSTGRES_AWAY)
        if self._lost_since is None:
            self.announce(f"{error}. Trying again")
        if self._lost_since is None or answers:
            self._lost_since = now
        elif self._ours and now - self._lost_since > LOST_SECONDS:
            raise Unavailable(
                f"the embedded servers have not answered for {LOST_SECONDS:.0f} s ({error.what}): "
                "start `taskbridge up` again; their logs are in the data directory"
            ) from error

    def _look(self, live: Live | None) -> None:
        before = time.monotonic()
        if before < self._next_look:
            return
        health = self._answers.health()
        lines = [*map(totals_line, health.pipelines), *(one.sentence for one in health.findings)]
        if live is not None:
            live.update(Group(self._table(len(lines)), *map(console.cell, lines)), refresh=True)
        else:
            # Sentences count seconds: one is written when another pipeline or tenant is concerned, not at each look.
            concerned = {(one.pipeline, one.tenant, one.colour) for one in health.findings}
            if (*map(totals_line, health.pipelines), concerned) != self._shown:
                self._shown = (*map(totals_line, health.pipelines), concerned)
                console.tell("; ".join(lines))
        after = time.monotonic()
        self._next_look = after + max(LOOK_SECONDS, (after - before) / LOOKS_SHARE)

    def _table(self, lines: int) -> Table:
        """Return the active tenants, as many as the terminal has room for."""
        room = max(1, self._console.size.height - 4 - lines)
        numbers = ("lease", "events", "runs")
        made = console.table("pipeline", "tenant", "state", *numbers, numbers=numbers)
        active = [(pulse.pipeline, one) for pulse in self._answers.pulse(room).pipelines for one in pulse.tenants]
        for name, one in active[:room]:
            lease = f"{one.lease_seconds:.1f} s" if one.lease_seconds else "-"
            counts = (f"{one.events:,}", f"{one.runs:,}")
            made.add_row(name, console.plain(one.tenant), console.state(one.state), lease, *counts)
        return made


def is_idle(runtime: Runtime) -> bool:
    """Whether no tenant of any pipeline has a runner or a pending record; one that waits for a delay has both."""
    surveys = runtime.gate.survey(runtime.pipelines.names(), 1).values()
    return not any(one.runners for one in surveys) and not has_pending(runtime)


def has_pending(runtime: Runtime) -> bool:
    """Whether any tenant of any pipeline has a pending record, due or not."""
    return any(True for name in runtime.pipelines.names() for _ in runtime.pending(name))
