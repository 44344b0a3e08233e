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
    One worker at a time for each pipeline that it knows. Its hold ends half a second after its next round was due,
    whether it died, froze or waits for Postgres; then another takes it, and begins with a base round. So does one whose
    hold is not in Redis any more, or is an older one: then Redis lost its data, or came back with older data.

What one pipeline may do to the others
    Nothing but a wait for one page of its records, or for its time-outs. A round is made in pages, and each page is
    stored: so no backlog is too long for a round. A pipeline whose page failed is left alone for a second, or longer if
    it took too much time.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import psycopg

from taskbridge.gate import Answer, Reminder, TailHold
from taskbridge.process.runtime import Runtime
from taskbridge.store import Found, Kind, NoAnswer

__all__ = ["Rounds", "base_round", "last_runs_restored", "tail_round"]

log = logging.getLogger(__name__)

HOLDS_LONGER: Final = 0.5
"""Seconds between two rounds for which the hold ends later than the next round is due."""
STORES_EVERY: Final = 5.0
"""Seconds after which T is stored although nothing was new: it lets Postgres forget what is under way."""
PAUSE: Final = 1.0
LONGEST_PAUSE: Final = 30.0
LISTENS_EVERY: Final = 1.0
LEAST_REST: Final = 0.005
"""Seconds between two pages, and between two rounds where commits are announced faster than rounds are made."""
SHARE: Final = 100
"""Base rounds may take one part in so many of the time."""
_TOO_SLOW: Final = (psycopg.errors.QueryCanceled, psycopg.errors.LockNotAvailable, NoAnswer)


def tail_page(
    here: Runtime, pipeline: str, previous: Found | None = None, *, stores: bool = True, more_patience: float = 0.0
) -> tuple[bool, Found | None]:
    """Remind tenants with records that no run has looked at, then store how far that was.

    Returns whether it was stored (where nothing was new, only if `stores`), and the page if it is not the round's last.
    """
    found = _look(here, pipeline, Kind.TAIL, previous=previous, more_patience=more_patience)
    _remind(here, pipeline, found, looked=False)
    stores = stores or found.fresh or found.until is not None
    if stores:
        here.tails.keep(Kind.TAIL, pipeline, found)
    return stores, None if found.until is None else found


def base_page(here: Runtime, pipeline: str, previous: Found | None = None) -> tuple[list[str], Found | None]:
    """Remind tenants with pending records, and store how far that was.

    Returns those that get a run by it, in their turn, and the page if it is not the round's last.
    """
    found = _look(here, pipeline, Kind.BASE, previous=previous)
    # A run that is under way settles or dies, and what it left is found by the next round.
    started = _remind(here, pipeline, found, looked=True)
    here.tails.keep(Kind.BASE, pipeline, found)
    return started, None if found.until is None else found


def tail_round(here: Runtime, pipeline: str, *, stores: bool = True) -> bool:
    """Make all pages of a round of the tail; return whether one was stored."""
    stored, page = tail_page(here, pipeline, stores=stores)
    while page is not None:
        _, page = tail_page(here, pipeline, page)
    return stored


def base_round(here: Runtime, pipeline: str) -> list[str]:
    """Make all pages of a base round, and what follows it; return the tenants that get a run by it, in their turn."""
    started, page = base_page(here, pipeline)
    while page is not None:
        more, page = base_page(here, pipeline, page)
        started += more
    for _ in last_runs_restored(here, pipeline):
        pass
    return started


def last_runs_restored(here: Runtime, pipeline: str) -> Iterator[None]:
    """Tell Redis, page by page, when tenants ran last, if it does not know: an event must not start one too early.

    That is where delays count from the last run: after Redis lost its data, when a delay was lengthened, and once a
    day. Whoever is reminded brings its own with it. If Redis loses its data in the middle, the next round begins anew.
    """
    spacing = here.pipelines[pipeline].policy.spacing
    if not spacing.last_ttl or here.gate.rebuilt_for(pipeline) == spacing.last_ttl:
        return
    here.gate.begin_rebuilding(pipeline)
    for page in here.cursors_of(pipeline).last_runs(pipeline, spacing.last_ttl):
        here.gate.remember_last(pipeline, page, spacing)
        yield
    here.gate.mark_rebuilt(pipeline, spacing.last_ttl)


def _look(here: Runtime, pipeline: str, kind: Kind, **options: Any) -> Found:
    declared = here.pipelines[pipeline]
    here.know(declared)
    # Another pipeline of the source may have given its records delays.
    has_delays = declared.criteria is not None
    smallest = declared.policy.spacing.delay
    return here.tails.look(kind, pipeline, declared.source, smallest, has_delays=has_delays, **options)


def _remind(here: Runtime, pipeline: str, found: Found, *, looked: bool) -> list[str]:
    keeps_last = here.pipelines[pipeline].policy.spacing.last_ttl > 0
    reminders = [Reminder(one.tenant, one.delay_ms, one.last_ms if keeps_last else None) for one in found.waiting]
    answers: list[Answer] = []
    if reminders:
        answers = here.gate.remind(pipeline, reminders, looked=looked, most_reminded=here.most_handed)
    begin = (Answer.STARTED, Answer.POSTPONED)
    return [reminder.tenant for reminder, answer in zip(reminders, answers, strict=True) if answer in begin]


@dataclass(slots=True)
class _Standing:
    """How this process stands with one pipeline; moments of the monotonic clock.

    `hold`: as the gate gave it last. `taken`: how often this process took it anew. `tail` and `base`: the last page of
    a round that is under way. `base_began`: when that of the base began. `started`: tenants that it has started.
    `restoring`: what follows a base round, if that is under way.
    """

    hold: TailHold | None = None
    holds_until: float = 0.0
    taken: int = 0
    stored_at: float = float("-inf")
    base_at: float = 0.0
    base_began: float = 0.0
    tail: Found | None = None
    base: Found | None = None
    restoring: Iterator[None] | None = None
    started: int = 0
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
            # What was announced before, nobody has heard.
            self.tail_in_turn()
        if list(self._ear.notifies(timeout=LISTENS_EVERY, stop_after=1)):
            self.tail_in_turn()
        return LEAST_REST

    def tail_in_turn(self) -> float:
        """Make a page of the tail of each pipeline that is this process's to look after; return seconds to wait."""
        with self._turn:
            began = time.monotonic()
            waits = [self._tail_of(name) for name in self.here.pipelines.names()]
            wait = min([self.here.settings.tail_interval, *waits])
            return max(LEAST_REST, wait - (time.monotonic() - began))

    def _tail_of(self, name: str) -> float:
        """Make a page if it is this process's turn; return the seconds until it is worth asking again."""
        standing, interval = self.standings[name], self.here.settings.tail_interval
        if standing.paused_until > time.monotonic():
            return interval
        if wait_ms := self._take(name, standing):
            return wait_ms / 1000
        try:
            stores = time.monotonic() - standing.stored_at > STORES_EVERY
            # What could not be read in time gets more time.
            stored, standing.tail = tail_page(
                self.here, name, standing.tail, stores=stores, more_patience=standing.pause
            )
        except Exception as error:
            standing.tail, slow = None, isinstance(error, _TOO_SLOW)
            standing.pause = min(LONGEST_PAUSE, max(PAUSE, standing.pause * 2)) if slow else 0.0
            standing.paused_until = time.monotonic() + (standing.pause or PAUSE)
            log.warning(
                "tail of %s: none for %.0f s: %s: %s", name, standing.pause or PAUSE, type(error).__name__, error
            )
            return interval
        standing.pause = 0.0
        if stored:
            standing.stored_at = time.monotonic()
        return interval if standing.tail is None else LEAST_REST

    def _take(self, name: str, standing: _Standing) -> int:
        """Take the hold, or keep it; return for how many milliseconds another has it."""
        asked, seconds = time.monotonic(), self.here.settings.tail_interval + HOLDS_LONGER
        hold = standing.hold = self.here.gate.hold(name, round(seconds * 1000), standing.hold)
        if hold.wait_ms:
            standing.holds_until = 0.0
        else:
            standing.holds_until = asked + seconds
            if hold.anew:
                standing.taken += 1
                standing.base_at, standing.base, standing.restoring = 0.0, None, None
        return hold.wait_ms

    def base_in_turn(self) -> float:
        """Make a page of the base round of each pipeline where one is due, if its tail is this process's.

        Returns seconds to wait.
        """
        waits = [min(self._base_of(name), self._restore(name)) for name in self.here.pipelines.names()]
        return min([0.25, self.here.settings.base_interval, *waits])

    def _base_of(self, name: str) -> float:
        standing, now, interval = self.standings[name], time.monotonic(), self.here.settings.base_interval
        if not standing.base_at <= now < standing.holds_until:
            return interval
        taken, previous = standing.taken, standing.base
        if previous is None:
            standing.base_began, standing.started = now, 0
        try:
            started, page = base_page(self.here, name, previous)
            rest = max(interval, SHARE * (time.monotonic() - standing.base_began))
        except Exception as error:
            # It may have taken long, and would again: half the time is enough.
            started, page, rest = [], None, interval + time.monotonic() - now
            log.warning("base of %s: %s: %s", name, type(error).__name__, error)
        standing.started += len(started)
        # Whoever took the hold anew meanwhile begins a new round: what this one reminded may be lost with Redis.
        if taken != standing.taken:
            return LEAST_REST
        standing.base = page
        if page is not None:
            return LEAST_REST
        standing.base_at = time.monotonic() + rest
        if standing.restoring is None:
            standing.restoring = last_runs_restored(self.here, name)
        if standing.started:
            self.here.orphaned[name] += standing.started
            log.warning("%s: %d tenants had pending records and no run", name, standing.started)
        return interval

    def _restore(self, name: str) -> float:
        """Restore a page of last runs where that is under way; return the seconds until it is worth asking again."""
        standing = self.standings[name]
        restoring = standing.restoring
        try:
            if restoring is not None and time.monotonic() < standing.holds_until:
                next(restoring)
                return LEAST_REST
        except StopIteration:
            pass
        except Exception as error:
            log.warning("last runs of %s: %s: %s", name, type(error).__name__, error)
        standing.restoring = None
        return self.here.settings.base_interval
