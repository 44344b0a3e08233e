"""What `taskbridge up` does and shows while it runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, Protocol

from rich.console import Console, Group
from rich.live import Live

from taskbridge.cli import console, interrupts
from taskbridge.cli.tenants import Totals, busiest, totals
from taskbridge.common.server_errors import POSTGRES_AWAY, translated_errors
from taskbridge.common.texts import counted
from taskbridge.errors import Unavailable
from taskbridge.process.runtime import Runtime
from taskbridge.store import driver_error

__all__ = ["Monitor"]

POLL_SECONDS: Final = 0.1
# A look counts records, so it is taken this much of the time at the most.
LOOKS_SHARE: Final = 0.05
LOOK_SECONDS: Final = 0.5
LOST_SECONDS: Final = 30.0


class Monitored(Protocol):
    """The workers, as far as they are needed here."""

    def watch(self) -> None:
        """Start again those that died."""


class Monitor:
    """Looks at the tenants and the workers until told to stop, and shows a table on a terminal, else lines.

    Args:
        runtime: the process's runtime.
        workers: are watched as well.
        ours: whether the servers live as long as this process. Then nobody else starts them again, so it gives up
            when they have not answered for half a minute.
    """

    def __init__(self, runtime: Runtime, workers: Monitored, *, ours: bool) -> None:
        self._runtime = runtime
        self._workers = workers
        self._ours = ours
        self._console = console.stderr()
        self._live: Live | None = None
        self._next_look = 0.0
        self._line = ""
        self._lost_since: float | None = None

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Show a table inside the `with` block, where stderr is a terminal."""
        if not self._console.is_terminal:
            yield
            return
        with Live(console=self._console, auto_refresh=False, transient=True) as live:
            self._live = live
            try:
                yield
            finally:
                self._live = None

    def announce(self, text: str) -> None:
        """Write a line, above the table where there is one."""
        self._console.print(f"taskbridge: {console.plain(text)}", soft_wrap=True)

    def until(self, finished: Callable[[Runtime], bool], timeout: float | None) -> bool:
        """Go on until `finished` says so, or for `timeout` seconds; return whether it did.

        Raises:
            Unavailable: a worker died again and again, or servers of our own no longer answer.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        with self.shown():
            while True:
                interrupts.check()
                self._workers.watch()
                if self._answer(finished):
                    return True
                if deadline is not None and time.monotonic() >= deadline:
                    return False
                time.sleep(POLL_SECONDS)

    def _answer(self, finished: Callable[[Runtime], bool]) -> bool:
        try:
            with translated_errors():
                self._look()
                done = finished(self._runtime)
        except Unavailable as error:
            self._lost(error)
            return False
        self._lost_since = None
        return done

    def _lost(self, error: Unavailable) -> None:
        now, said = time.monotonic(), driver_error(error.__cause__)
        # Who waits for a lock in vain has an answer all the same.
        answers = said is not None and bool(said.sqlstate) and not str(said.sqlstate).startswith(POSTGRES_AWAY)
        if self._lost_since is None:
            self.announce(f"{error}. Trying again")
        if self._lost_since is None or answers:
            self._lost_since = now
        elif self._ours and now - self._lost_since > LOST_SECONDS:
            raise Unavailable(
                f"the embedded servers have not answered for {LOST_SECONDS:.0f} s ({error.what}): "
                "start `taskbridge up` again; their logs are in the data directory"
            ) from error

    def _look(self) -> None:
        before = time.monotonic()
        if before < self._next_look:
            return
        wholes = [totals(self._runtime, name) for name in self._runtime.pipelines.names()]
        if self._live is not None:
            warnings = [console.cell(text, "yellow") for text in self._warnings(wholes)]
            self._live.update(Group(_table(self._console, self._runtime, wholes), *warnings), refresh=True)
        else:
            self._print_change(wholes)
        after = time.monotonic()
        self._next_look = after + max(LOOK_SECONDS, (after - before) / LOOKS_SHARE)

    def _warnings(self, wholes: list[Totals]) -> Iterator[str]:
        """Say what does not go on."""
        for one in wholes:
            if one.survey.circuit.open:
                yield f"{one.pipeline}: the circuit is open: everything fails; `taskbridge status` shows the errors"
            tenant = one.backlog.fails
            if tenant is not None:
                (row,) = self._runtime.tenants_of(one.pipeline).counts(one.pipeline, [tenant], 1)
                failing = counted(one.backlog.failing, "tenant fails", "tenants fail")
                yield f"{one.pipeline}: {failing}; {tenant}: {row['last_error']}"

    def _print_change(self, wholes: list[Totals]) -> None:
        line = "; ".join([*map(str, wholes), *self._warnings(wholes)])
        if line != self._line:
            self._line = line
            console.tell(line)


def _table(terminal: Console, runtime: Runtime, wholes: list[Totals]) -> console.Table:
    """Show as many tenants as the terminal has lines for, the busiest first, and what it has columns for."""
    room = max(1, terminal.size.height - 6 - len(wholes))
    found = {one.pipeline: busiest(runtime, one, room) for one in wholes}
    rows = [(name, one) for name, (tenants, _) in found.items() for one in tenants]
    rows.sort(key=lambda row: (row[1].runner.deadline_ms is None, -row[1].counts["pending"], row[0], row[1].tenant))
    shown = {"pending": "pending", "handled": "handled"}
    if terminal.width >= console.NARROW:
        shown |= {"quarantine": "quarantined", "events": "burst_events", "runs": "burst_runs"}
    made = console.Table(terminal, "tenant", "state", "lease", *shown, left=("state",))
    for name, one in rows[:room]:
        text = console.cell(one.tenant if len(wholes) == 1 else f"{name}: {one.tenant}")
        text.truncate(max(8, terminal.width - 65), overflow="ellipsis")
        numbers = map(one.count, shown.values())
        lease = f"{one.lease_seconds:.1f} s" if one.lease_seconds else "-"
        made.add_row(text, console.state(terminal, one.state), lease, *numbers)
    if len(rows) > room or any(more for _, more in found.values()):
        made.caption = "\n".join(["and more tenants", *map(str, wholes)])
    return made
