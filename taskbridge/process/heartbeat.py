"""Heartbeats: while a handler works, the deadline of its run is extended.

One thread per process beats for all of its runs, and is the alarm clock of groups of runs. It starts with the first
run, and wakes at its interval whether or not there is a run: waking it for every run would cost more than a short run
takes.

A run's ownership is trusted from before the call that confirmed it, and for less than the TTL. So a process that was
frozen knows, when it resumes, that another run may have replaced its own.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from taskbridge.common.texts import error_text

__all__ = ["BEATS", "Heartbeat", "Ownership"]

log = logging.getLogger(__name__)

BEATS: Final = 3
"""Heartbeats per `runner_ttl`, the time after which a run without one counts as dead."""


class Ownership:
    """Whether a run still owns its tenant, as far as this process knows. Times are seconds of the monotonic clock.

    Args:
        beat: extends the run's deadline, and returns whether the run still owns its tenant.
        trust: for how many seconds a confirmation is valid, from before the call that returned it.
        confirmed: the time before the call that began the run.
    """

    def __init__(self, beat: Callable[[], bool], trust: float, confirmed: float) -> None:
        self._beat = beat
        self._trust = trust
        self._confirmed = confirmed
        self._lost = False
        self.ends_at = math.inf
        """When the run gives up its tenant, even if its handler is still running."""

    @property
    def owned(self) -> bool:
        """Whether no heartbeat was refused and the last confirmation is still valid."""
        return not self._lost and time.monotonic() < self._confirmed + self._trust

    def renew(self) -> None:
        """Send a heartbeat."""
        before = time.monotonic()
        if before < self.ends_at and self._beat():
            self._confirmed = before
        else:
            self._lost = True


@dataclass(eq=False, slots=True)
class _Alarm:
    """An action that is due at a time of the monotonic clock, unless it is cancelled before."""

    due: float
    action: Callable[[], None]
    ended: threading.Event = field(default_factory=threading.Event)

    def go_off(self) -> None:
        """Do the action in a thread of its own: it may wait for a server, and the heartbeats must not wait for it."""
        try:
            threading.Thread(target=self._act, name="taskbridge-relief", daemon=True).start()
        except RuntimeError:
            # The machine has no threads left.
            self._act()

    def _act(self) -> None:
        try:
            self.action()
        except Exception as error:
            log.warning("a group of runs was not relieved: %s", error_text(error))
        finally:
            self.ended.set()

    def wait(self) -> None:
        """Wait for the action to end, even if this thread is interrupted in the meantime: both use the same runs."""
        interruption: BaseException | None = None
        while not self.ended.is_set():
            try:
                # Not `Thread.join`: once interrupted, it assumes that the thread has ended.
                self.ended.wait()
            except BaseException as error:
                interruption = interruption or error
        if interruption is not None:
            raise interruption


class Heartbeat:
    """Sends heartbeats for the runs of a process, `BEATS` per `ttl` seconds, after which a run counts as dead."""

    def __init__(self, ttl: float) -> None:
        self._interval = ttl / BEATS
        self._trust = ttl * 0.9
        self._owned: set[Ownership] = set()
        self._alarms: dict[_Alarm, bool] = {}
        """Whoever removes an alarm decides: the end of its block cancels it, the thread of this class triggers it."""
        self._wakes_at = math.inf
        self._woken = threading.Event()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None

    def add(self, beat: Callable[[], bool], confirmed: float) -> Ownership:
        """Send heartbeats for a run that has just begun, until `discard`. The arguments are those of `Ownership`."""
        ownership = Ownership(beat, self._trust, confirmed)
        self._owned.add(ownership)
        if self._thread is None:
            self._start()
        return ownership

    def discard(self, ownership: Ownership) -> None:
        """Send no more heartbeats for a run."""
        self._owned.discard(ownership)

    @contextmanager
    def alarm(self, seconds: float, action: Callable[[], None]) -> Iterator[None]:
        """If the block takes longer than `seconds`, do `action` in another thread; the block's end waits for it."""
        alarm = _Alarm(time.monotonic() + seconds, action)
        if math.isinf(seconds):
            yield
            return
        self._alarms[alarm] = True
        if alarm.due < self._wakes_at:
            self._woken.set()
        try:
            yield
        finally:
            if not self._alarms.pop(alarm, False):
                alarm.wait()

    def _start(self) -> None:
        with self._starting:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="taskbridge-heartbeat", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        beats_at = time.monotonic() + self._interval
        while True:
            # Until the time is computed again, any added alarm wakes this thread.
            self._wakes_at = math.inf
            alarms = tuple(self._alarms)
            self._wakes_at = min([beats_at, *(alarm.due for alarm in alarms)])
            self._woken.wait(max(0.0, self._wakes_at - time.monotonic()))
            self._woken.clear()
            now = time.monotonic()
            for alarm in alarms:
                if alarm.due <= now and self._alarms.pop(alarm, False):
                    alarm.go_off()
            if now >= beats_at:
                self._beat()
                beats_at = time.monotonic() + self._interval

    def _beat(self) -> None:
        for ownership in tuple(self._owned):
            try:
                ownership.renew()
            except Exception as error:
                # If Redis stays unavailable, ownership expires by itself. This thread must survive any error, because
                # it sends the heartbeats of the other runs too.
                log.warning("heartbeat not delivered: %s", error_text(error))
