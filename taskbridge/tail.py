"""The tail and the base: they find every committed record, whoever wrote it and whether or not anybody notified.

What each is for
    The tail looks at all commits a few times a second, and reminds each tenant with records that no run has looked at.
    So an event is a wake-up that makes work begin at once, and nothing else hangs on it. The base looks at what is
    still pending, whoever was reminded and whatever runs: it repairs what a Redis that lost its data, or came back with
    older data, has forgotten. Both are rounds over snapshots, so they cost nothing for a tenant that is merely there.

Who is authoritative
    Postgres. T and B are stored there, and only after every tenant of the round was reminded: a round that ends before
    that is made again. A T or B that is older than it could be costs a look and nothing else, so it does not matter
    that two workers may make a round at the same time, or that one froze in the middle of one. One that is too new
    would hide records; so each is stored only where the one that the round has read still stands.

Who does it
    One worker at a time for each pipeline that it knows. Its hold ends 0.7 s after its last round began, whether it
    died, froze or waits for Postgres; then another takes it, and begins with a base round. So does one whose hold was
    lost with the rest of Redis.

What one pipeline may do to the others
    Nothing but a wait for its time-outs. A pipeline whose round failed is left alone for a while, by then another
    worker's.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any, Final

import psycopg

from taskbridge.gate import Answer, Reminder
from taskbridge.runtime import Runtime
from taskbridge.store import Found

__all__ = ["Rounds", "base_round", "tail_round"]

log = logging.getLogger(__name__)

HOLD: Final = 0.7
STORES_EVERY: Final = 5.0
"""Seconds after which T is stored although nothing was new: it lets Postgres forget what is under way."""
LONGEST_PAUSE: Final = 30.0
LISTENS_EVERY: Final = 1.0
LEAST_REST: Final = 0.005
"""Seconds between two rounds where commits are announced faster than rounds are made."""
SHARE: Final = 100
"""A base round may take one part in so many of the time."""


def tail_round(here: Runtime, pipeline: str, *, stores: bool = True, more_patience: float = 0.0) -> bool:
    """Remind the tenants with records that no run has looked at, then store how far that was.

    Returns whether it was stored: where nothing was new, only if `stores`.
    """
    found = here.tails.news(pipeline, *_asked(here, pipeline), more_patience)
    _remind(here, pipeline, found, looked=False)
    if found.fresh or stores:
        here.tails.keep_news(pipeline, found)
    return found.fresh or stores


def base_round(here: Runtime, pipeline: str) -> list[str]:
    """Remind every tenant with pending records; return those that get a run by it, in their turn.

    Before that, Redis is told when tenants ran last, if it does not know: an event must not start one too early.
    """
    _restore_last_runs(here, pipeline)
    found = here.tails.open(pipeline, *_asked(here, pipeline))
    # A run that is under way settles or dies, and what it left is found by the next round.
    started = _remind(here, pipeline, found, looked=True)
    here.tails.keep_open(pipeline, found)
    return started


def _restore_last_runs(here: Runtime, pipeline: str) -> None:
    """Where delays count from the last run: after Redis lost its data, when a delay was lengthened, and once a day."""
    spacing = here.pipelines[pipeline].policy.spacing
    if spacing.last_ttl and here.gate.rebuilt_for(pipeline) != spacing.last_ttl:
        here.gate.remember_last(pipeline, here.cursors_of(pipeline).last_runs(pipeline, spacing.last_ttl), spacing)
        here.gate.mark_rebuilt(pipeline, spacing.last_ttl)


def _asked(here: Runtime, pipeline: str) -> tuple[str, int]:
    """Return the pipeline's source and the delay of a record that has none."""
    declared = here.pipelines[pipeline]
    here.know(declared)
    return declared.source, declared.policy.spacing.delay


def _remind(here: Runtime, pipeline: str, found: Found, *, looked: bool) -> list[str]:
    keeps_last = here.pipelines[pipeline].policy.spacing.last_ttl > 0
    reminders = [Reminder(one.tenant, one.delay_ms, one.last_ms if keeps_last else None) for one in found.waiting]
    answers = here.gate.remind(pipeline, reminders, looked=looked) if reminders else []
    begin = (Answer.STARTED, Answer.POSTPONED)
    return [reminder.tenant for reminder, answer in zip(reminders, answers, strict=True) if answer in begin]


@dataclass(slots=True)
class _Standing:
    """How this process stands with one pipeline; moments of the monotonic clock."""

    holds_until: float = 0.0
    stored_at: float = float("-inf")
    base_at: float = 0.0
    pause: float = 0.0
    paused_until: float = 0.0


@dataclass(slots=True)
class Rounds:
    """The rounds of one process: `tail_in_turn` and `base_in_turn` are each called by a thread of its own."""

    here: Runtime
    standings: defaultdict[str, _Standing] = field(default_factory=lambda: defaultdict(_Standing))
    _turn: threading.Lock = field(default_factory=threading.Lock)
    _ear: psycopg.Connection[Any] | None = None

    def listen_in_turn(self) -> float:
        """Wait for a commit that is announced, then make a round of the tail; return seconds to wait."""
        if not self.here.settings.tail_listens:
            return LISTENS_EVERY
        if self._ear is None or self._ear.closed:
            self._ear = self.here.tails.listen()
        if list(self._ear.notifies(timeout=LISTENS_EVERY, stop_after=1)):
            self.tail_in_turn()
        return LEAST_REST

    def tail_in_turn(self) -> float:
        """Make a round of the tail of each pipeline that is this process's to look after; return seconds to wait."""
        with self._turn:
            return self._tail_in_turn()

    def _tail_in_turn(self) -> float:
        now = time.monotonic()
        names = [name for name in self.here.pipelines.names() if self.standings[name].paused_until <= now]
        waits = [self.here.settings.tail_interval]
        for name, hold in zip(names, self.here.gate.hold(names, round(HOLD * 1000)), strict=True):
            standing = self.standings[name]
            if hold.wait_ms:
                standing.holds_until = 0.0
                waits.append(hold.wait_ms / 1000)
                continue
            if hold.anew:
                standing.base_at = 0.0
            standing.holds_until = now + HOLD
            try:
                self._tail(name, standing)
                standing.pause = 0.0
            except Exception as error:
                standing.pause = min(LONGEST_PAUSE, max(1.0, standing.pause * 2))
                standing.paused_until = time.monotonic() + standing.pause
                standing.holds_until = 0.0
                log.warning("tail of %s: none for %.0f s: %s: %s", name, standing.pause, type(error).__name__, error)
        return max(0.01, min(waits) - (time.monotonic() - now))

    def _tail(self, name: str, standing: _Standing) -> None:
        stores = time.monotonic() - standing.stored_at > STORES_EVERY
        # What came while no round got through may be too much for one that is as short as any.
        if tail_round(self.here, name, stores=stores, more_patience=standing.pause):
            standing.stored_at = time.monotonic()

    def base_in_turn(self) -> float:
        """Make a base round of each pipeline where it is due, if its tail is this process's; return seconds to wait."""
        for name in self.here.pipelines.names():
            standing, now = self.standings[name], time.monotonic()
            if standing.base_at <= now < standing.holds_until:
                try:
                    self._base(name, standing)
                except Exception as error:
                    # It may have taken long, and would again: half the time is enough.
                    standing.base_at = 2 * time.monotonic() - now + self.here.settings.base_interval
                    log.warning("base of %s: %s: %s", name, type(error).__name__, error)
        return min(0.25, self.here.settings.base_interval)

    def _base(self, name: str, standing: _Standing) -> None:
        started = time.monotonic()
        started_now = base_round(self.here, name)
        now = time.monotonic()
        standing.base_at = now + max(self.here.settings.base_interval, SHARE * (now - started))
        if started_now:
            self.here.forgotten[name] += len(started_now)
            log.warning("%s: %d tenants had pending records and no run", name, len(started_now))
