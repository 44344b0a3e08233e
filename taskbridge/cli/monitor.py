"""Watch workers and show progress while `taskbridge up` runs."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from taskbridge.cli import console, interrupts
from taskbridge.cli.status import totals_line
from taskbridge.common.server_errors import is_away, translated_errors
from taskbridge.errors import Unavailable
from taskbridge.observe.context import Context

if TYPE_CHECKING:
    from taskbridge.process.runtime import Runtime

__all__ = ["Monitor", "has_pending", "is_idle"]

POLL_SECONDS: Final = 0.1
SHOW_SECONDS: Final = 0.5
SHOW_SHARE: Final = 0.05
"""The maximum share of the time that is spent on showing the state."""
LOST_SECONDS: Final = 30.0


class Monitored(Protocol):
    """What is needed of the workers here."""

    def watch(self) -> None:
        """Restart workers that have died."""


class Monitor:
    """Watches the workers, and writes a line when the totals or findings of the pipelines change.

    Args:
        runtime: the process's runtime.
        workers: the workers to watch.
        ours: whether the servers belong to this process. Nobody else can restart them, so the monitor gives up if they
            do not answer for half a minute.
    """

    def __init__(self, runtime: Runtime, workers: Monitored, *, ours: bool) -> None:
        self._runtime = runtime
        self._workers = workers
        self._ours = ours
        self._context = Context.of(runtime)
        self._next_show = 0.0
        self._shown: tuple[object, ...] = ()
        self._lost_since: float | None = None

    def until(self, finished: Callable[[Runtime], bool], timeout: float | None) -> bool:
        """Run until `finished` returns true, or for `timeout` seconds; return whether it did.

        Raises:
            Unavailable: a worker keeps dying, or our own servers no longer answer.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            interrupts.check()
            self._workers.watch()
            if self._is_finished(finished):
                return True
            if deadline is not None and time.monotonic() >= deadline:
                return False
            time.sleep(POLL_SECONDS)

    def _is_finished(self, finished: Callable[[Runtime], bool]) -> bool:
        try:
            with translated_errors():
                self._show()
                done = finished(self._runtime)
        except Unavailable as error:
            self._note_lost(error)
            return False
        self._lost_since = None
        return done

    def _note_lost(self, error: Unavailable) -> None:
        # A server that reports a lock timeout does answer.
        answers = error.__cause__ is not None and not is_away(error.__cause__)
        if self._lost_since is None:
            console.complain(f"{error}. Retrying")
        if self._lost_since is None or answers:
            self._lost_since = time.monotonic()
        elif self._ours and time.monotonic() - self._lost_since > LOST_SECONDS:
            raise Unavailable(
                f"the embedded servers have not answered for {LOST_SECONDS:.0f} s ({error.what}): "
                "restart `taskbridge up`; the servers' logs are in the data directory"
            ) from error

    def _show(self) -> None:
        from taskbridge.observe.health import health

        before = time.monotonic()
        if before < self._next_show:
            return
        found = health(self._context)
        totals = [totals_line(one) for one in found.pipelines]
        # Sentences contain seconds, so only write a line if other pipelines or tenants are affected.
        shown = (*totals, {(one.pipeline, one.tenant, one.colour) for one in found.findings})
        if shown != self._shown:
            self._shown = shown
            console.tell("; ".join([*totals, *(one.sentence for one in found.findings)]))
        after = time.monotonic()
        self._next_show = after + max(SHOW_SECONDS, (after - before) / SHOW_SHARE)


def is_idle(runtime: Runtime) -> bool:
    """Whether no tenant has a runner or a pending record. A tenant that waits for a delay has both."""
    surveys = runtime.gate.survey(runtime.names(), 1).values()
    return not any(one.runners for one in surveys) and not has_pending(runtime)


def has_pending(runtime: Runtime) -> bool:
    """Whether any tenant has a pending record, due or not."""
    return any(True for name in runtime.names() for _ in runtime.pending(name))
