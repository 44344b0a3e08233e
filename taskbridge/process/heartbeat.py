"""Heartbeats: while a handler works, its run's deadline moves on.

One thread per process beats for all runs of the process; it starts with the first run. It wakes at its interval whether
there is a run or not: to wake it for each run would cost a short run more.
Ownership counts from before the call that confirmed it, and for less than the TTL. So a process that was frozen knows
when it goes on that another run may have replaced its own.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from taskbridge.common.texts import error_text

__all__ = ["BEATS", "Heartbeat", "Ownership"]

log = logging.getLogger(__name__)

BEATS: Final = 3
"""How often a run beats in `runner_ttl`, after which it counts as dead."""


class Ownership:
    """Whether a run still has its tenant, as far as this process knows. Times are seconds of the monotonic clock.

    Args:
        beat: moves the run's deadline on, and says whether the run still has its tenant.
        trust: for how many seconds a confirmation counts, from before the call that gave it.
        confirmed: the time before the call that began the run.
    """

    def __init__(self, beat: Callable[[], bool], trust: float, confirmed: float) -> None:
        self._beat = beat
        self._trust = trust
        self._confirmed = confirmed
        self._lost = False
        self.ends_at = math.inf
        """When the run gives its tenant up, even if its handler goes on."""

    @property
    def owned(self) -> bool:
        """Whether no beat was refused and the last confirmation still counts."""
        return not self._lost and time.monotonic() < self._confirmed + self._trust

    def renew(self) -> None:
        """Beat once."""
        before = time.monotonic()
        if before < self.ends_at and self._beat():
            self._confirmed = before
        else:
            self._lost = True


class Heartbeat:
    """Beats for the runs of a process `BEATS` times per `ttl` seconds, after which a run counts as dead."""

    def __init__(self, ttl: float) -> None:
        self._interval = ttl / BEATS
        self._trust = ttl * 0.9
        self._owned: set[Ownership] = set()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None

    @contextmanager
    def keep(self, beat: Callable[[], bool], *, confirmed: float) -> Iterator[Ownership]:
        """Beat for a run that has just begun, until the block ends. The arguments are those of `Ownership`."""
        ownership = Ownership(beat, self._trust, confirmed)
        self._owned.add(ownership)
        if self._thread is None:
            self._start()
        try:
            yield ownership
        finally:
            self._owned.discard(ownership)

    def _start(self) -> None:
        with self._starting:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="taskbridge-heartbeat", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while True:
            time.sleep(self._interval)
            for ownership in tuple(self._owned):
                try:
                    ownership.renew()
                except Exception as error:
                    # If Redis stays away, ownership runs out by itself; the run goes on until then. Whatever it is, the
                    # thread goes on: it beats for the other runs too.
                    log.warning("heartbeat not delivered: %s", error_text(error))
