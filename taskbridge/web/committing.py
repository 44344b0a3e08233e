"""Group commit: requests that come while a transaction is on share the next one.

The first request of a quiet time starts a transaction at once, so nobody waits for a timer. What comes meanwhile waits
for that commit and goes together into the next. A thread does it, with the same sessions and time-outs as all else.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context
from typing import Final, NamedTuple

import psycopg
from celery import Celery

from taskbridge.common.seldom import Seldom
from taskbridge.common.server_errors import translated_errors
from taskbridge.errors import InvalidInput, TaskBridgeError, Unavailable
from taskbridge.process.runtime import runtime_of
from taskbridge.producing.intake import Message, give_up
from taskbridge.producing.notify import Event, Events, asend, logged, merge
from taskbridge.producing.recording import Prepared
from taskbridge.store import Incoming, Stored, forget_received, prepare_receiving, receive
from taskbridge.web.webhook import Unfit

__all__ = ["Brought", "GroupCommit", "Overloaded"]

log = logging.getLogger(__name__)

TOGETHER: Final = 500
"""A transaction takes no more requests once they bring as many records."""
CHARACTERS_TOGETHER: Final = 16_000_000
"""A transaction takes no more requests once their documents are as long."""
MOST_WAITING: Final = 2_000
"""Requests that may wait; more are told to come again."""
MOST_CHARACTERS: Final = 64_000_000
"""No more requests may wait once the documents of those that wait, or are being written, are as long."""
OF_EACH: Final = 200
"""As many characters are counted for a record beside its names and its document."""
SPLIT_WITHIN: Final = 2.0
"""Seconds in which a group is halved where a record of it is locked; all that is left is tried again."""
LOCKED_FOR: Final = 5.0
"""Seconds in which a record that was locked is tried apart from the others, too."""
TRIED_FOR: Final = 2.0
"""Seconds from its coming in which a request whose record is locked is tried again."""
APART_EVERY: Final = 0.5
"""Seconds between two tries of those that are locked, while others wait."""
OPENED_WITHIN: Final = 2.0
"""Seconds for which a server's start waits for a session."""
FORGETS_EVERY: Final = 60.0
"""Seconds between two looks for ids of webhooks that are too old to be kept."""

Result = bool | Exception
"""Whether all of a request came for the first time, or why it is not stored."""
Place = tuple[str, str, str]
"""Source, tenant and key of a record."""


class Overloaded(Unavailable):
    """More requests came than can be stored. The sender should come again later."""


class Locked(Unavailable):
    """Another transaction holds the record, or one that is written together with it."""


class Brought(NamedTuple):
    """What one request brings; all of it is stored, or nothing."""

    records: Sequence[Incoming] = ()
    messages: Sequence[Prepared] = ()

    @property
    def places(self) -> list[Place]:
        """Source or pipeline, tenant and key of each."""
        return [*(one.place for one in self.records), *((one.pipeline, "", one.message_id) for one in self.messages)]

    @property
    def characters(self) -> int:
        """About how much memory it takes."""
        texts = [one.document or "" for one in self.records] + [one.text for one in self.messages]
        return sum(map(len, texts)) + sum(OF_EACH + sum(map(len, place)) for place in self.places)


class _Waiting(NamedTuple):
    brought: Brought
    characters: int
    stored: asyncio.Future[bool]
    until: float
    """Until when (`time.monotonic`) it is tried again where its record is locked."""

    @property
    def entries(self) -> int:
        return len(self.brought.records) + len(self.brought.messages)


class Changes(NamedTuple):
    """Which tenants (source, tenant) have changed records, and the events of messages that found their tenant."""

    tenants: set[tuple[str, str]] = set()  # noqa: RUF012 - nobody changes it
    matched: Events = {}  # noqa: RUF012 - nobody changes it

    def and_those_of(self, others: Changes) -> Changes:
        """Return both."""
        return Changes(self.tenants | others.tenants, _merged(self.matched, others.matched))


class GroupCommit:
    """Stores what requests bring, and notifies the pipelines that read it. One for each event loop."""

    def __init__(self, app: Celery) -> None:
        self._app = app
        self._runtime = runtime_of(app)
        self._waiting: deque[_Waiting] = deque()
        self._apart: deque[_Waiting] = deque()
        """Those whose records are locked: they share transactions with each other alone."""
        self._apart_at = 0.0
        self._characters = 0
        self._thread = ThreadPoolExecutor(1, "taskbridge-receiver")
        self._beside = ThreadPoolExecutor(1, "taskbridge-unmatched")
        self._working: asyncio.Task[None] | None = None
        self._changed: set[tuple[str, str]] = set()
        self._matched: dict[Event, int | None] = {}
        self._notifying: asyncio.Task[None] | None = None
        self._has_pipelines = False
        self._failures = Seldom()
        """What failed by no fault of a sender: transactions and events, by class."""
        self._forgets_at = 0.0
        self._locked: dict[Place, float] = {}
        """Records that another transaction holds, and until when (`time.monotonic`) they are tried apart."""

    async def open(self) -> None:
        """Open a session, and import the modules with the pipelines: the first request would pay for it otherwise.

        Where either fails or takes longer than `OPENED_WITHIN`, requests are told so as ever.
        """
        loop = asyncio.get_running_loop()
        steps = (
            loop.run_in_executor(self._thread, prepare_receiving, self._runtime.engine),
            asyncio.to_thread(self._import_pipelines),
        )
        opening = asyncio.gather(*steps, return_exceptions=True)
        await asyncio.wait([opening], timeout=OPENED_WITHIN)

    async def store(self, brought: Brought) -> bool:
        """Store what a request brings; return when it is durable, and whether all of it came for the first time.

        Raises:
            Overloaded: too many others wait.
            Locked: another transaction has held the record for `TRIED_FOR`.
            Unavailable: Postgres cannot be used. What became of it is unknown, so the sender should come again.
            InvalidInput: Postgres refuses the record.
        """
        self._check_room()
        stored: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        one = _Waiting(brought, brought.characters, stored, time.monotonic() + TRIED_FOR)
        self._queue(one)
        self._characters += one.characters
        if self._working is None or self._working.done():
            # In no request's context, since it works for many.
            self._working = asyncio.create_task(self._work(), context=Context())
        return await stored

    async def keep(self, unfit: Unfit) -> None:
        """Store a request that brings no record as unmatched; the same body is stored once.

        Raises:
            Overloaded: too many others wait.
            Unavailable: Postgres cannot be used.
        """
        self._check_room()
        name, length = hashlib.sha256(unfit.request.body).hexdigest(), len(unfit.request.body)
        message = Message(unfit.source, unfit.request.payload, name, name)
        self._characters += length
        try:
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self._beside, give_up, self._runtime, message, unfit.reason)
        finally:
            self._characters -= length

    def _check_room(self) -> None:
        if len(self._waiting) + len(self._apart) >= MOST_WAITING or self._characters > MOST_CHARACTERS:
            raise Overloaded("more requests came than can be stored: come again in a second")

    async def close(self) -> None:
        """Wait for what was begun."""
        if self._working is not None:
            await asyncio.wait([self._working])
        if self._notifying is not None:
            await asyncio.wait([self._notifying])
        self._thread.shutdown()
        self._beside.shutdown()

    async def _work(self) -> None:
        """Make one transaction after the other while requests wait."""
        loop = asyncio.get_running_loop()
        group: list[_Waiting] = []
        try:
            while self._waiting or self._apart:
                group, ends = self._next_group()
                brought = [one.brought for one in group]
                results, changes = await loop.run_in_executor(self._thread, self._write, brought, ends)
                for one, result in zip(group, results, strict=True):
                    self._settle(one, result)
                self._notify(changes)
                if time.monotonic() >= self._forgets_at:
                    await loop.run_in_executor(self._thread, self._forget)
        finally:
            # Where this was cancelled, nobody else would ever answer them.
            for one in (*group, *self._waiting, *self._apart):
                _answer(one, Unavailable("the receiver ends"))
            self._characters -= sum(one.characters for one in (*self._waiting, *self._apart))
            self._waiting.clear()
            self._apart.clear()
            self._working = None

    def _next_group(self) -> tuple[list[_Waiting], float]:
        """Return what goes into the next transaction, and until when it is halved where a record is locked.

        Those that were locked are not halved: the others wait for one lock time-out, however many they are.
        """
        now = time.monotonic()
        is_apart = bool(self._apart) and (not self._waiting or now >= self._apart_at)
        self._apart_at = now + APART_EVERY if is_apart else self._apart_at
        waiting = self._apart if is_apart else self._waiting
        group, count, characters = list[_Waiting](), 0, 0
        while waiting and count < TOGETHER and characters < CHARACTERS_TOGETHER:
            one = waiting.popleft()
            group.append(one)
            count += one.entries
            characters += one.characters
        return group, now if is_apart else now + SPLIT_WITHIN

    def _queue(self, one: _Waiting) -> None:
        now = time.monotonic()
        is_locked = any(self._locked.get(place, 0.0) > now for place in one.brought.places) if self._locked else False
        (self._apart if is_locked else self._waiting).append(one)

    def _settle(self, one: _Waiting, result: Result) -> None:
        """Answer a request, or let it be tried again where its record is locked."""
        if isinstance(result, Locked) and time.monotonic() < one.until and not one.stored.done():
            self._queue(one)
            return
        self._characters -= one.characters
        _answer(one, result)

    def _write(self, group: Sequence[Brought], ends: float) -> tuple[Sequence[Result], Changes]:
        """Store a group, in the thread; return what becomes of each request, and what has changed.

        Where one of them is refused, or a record of it is locked, the group is halved until it is alone, or until
        `ends`.
        """
        try:
            with translated_errors():
                stored = self._received(group)
        except Exception as error:
            if isinstance(error.__cause__, psycopg.errors.LockNotAvailable):
                if len(group) == 1:
                    self._locked |= dict.fromkeys(group[0].places, time.monotonic() + LOCKED_FOR)
                if len(group) == 1 or time.monotonic() > ends:
                    return [Locked("another transaction holds the record: come again")] * len(group), Changes()
            elif len(group) == 1 or isinstance(error, Unavailable):
                return [self._reason(error)] * len(group), Changes()
            half = len(group) // 2
            (results, changes), (others, more) = self._write(group[:half], ends), self._write(group[half:], ends)
            return [*results, *others], changes.and_those_of(more)
        for place in [place for one in group for place in one.places] if self._locked else ():
            self._locked.pop(place, None)
        return _first_comings(group, stored), Changes(stored.tenants, _matched(group, stored))

    def _reason(self, error: Exception) -> Exception:
        """Return what becomes of a request after this error."""
        if isinstance(error, TaskBridgeError):
            return error
        if isinstance(error, psycopg.DataError):
            return InvalidInput("Postgres cannot hold the record")
        if count := self._failures.counted(type(error)):
            log.error("transactions of the receiver that failed with this error: %d, the last", count, exc_info=error)
        return Unavailable("the receiver failed")

    def _received(self, group: Sequence[Brought]) -> Stored:
        records = [one for brought in group for one in brought.records]
        messages = [one.statement(self._runtime) for brought in group for one in brought.messages]
        try:
            return receive(self._runtime.engine, records, messages)
        except psycopg.errors.DeadlockDetected:
            # With somebody who writes the same records in another order.
            return receive(self._runtime.engine, records, messages)

    def _forget(self) -> None:
        try:
            with translated_errors():
                more = forget_received(self._runtime.engine)
        except Exception as error:
            log.warning("ids of old webhooks are not deleted now: %s", error)
            more = False
        if not more:
            self._forgets_at = time.monotonic() + FORGETS_EVERY
        self._locked = {place: until for place, until in self._locked.items() if until > time.monotonic()}

    def _notify(self, changes: Changes) -> None:
        """Send events for tenants with changed records. No answer waits for it: workers find them all the same."""
        self._changed |= changes.tenants
        self._matched = _merged(self._matched, changes.matched)
        if (self._changed or self._matched) and (self._notifying is None or self._notifying.done()):
            self._notifying = asyncio.create_task(self._send(), context=Context())

    async def _send(self) -> None:
        try:
            while self._changed or self._matched:
                changed, self._changed = self._changed, set()
                matched, self._matched = self._matched, {}
                if not self._has_pipelines:
                    await asyncio.to_thread(self._import_pipelines)
                if events := self._events(changed, matched):
                    with logged(self._runtime, events, self._failures):
                        await asend(self._runtime, [*events.items()])
        except Exception as error:
            if self._failures.counted(type(error)):
                log.exception("no events for the records that came; workers find them all the same")
        finally:
            self._notifying = None

    def _import_pipelines(self) -> None:
        self._runtime.pipelines.names()
        # Made by the first event otherwise.
        _ = self._runtime.event_gate
        self._has_pipelines = True

    def _events(self, changed: set[tuple[str, str]], matched: Events) -> Events:
        pipelines = self._runtime.pipelines
        readers = {
            (name, tenant): None
            for name in pipelines.names()
            for source, tenant in changed
            if source == pipelines[name].source
        }
        return _merged(readers, matched)


def _matched(group: Sequence[Brought], stored: Stored) -> dict[Event, int | None]:
    """Return the events of messages that are new and have a tenant."""
    messages = [one for brought in group for one in brought.messages]
    found: dict[Event, int | None] = {}
    for at in stored.messages:
        merge(found, dict(messages[at].events))
    return found


def _merged(events: Events, others: Events) -> dict[Event, int | None]:
    both = dict(events)
    merge(both, others)
    return both


def _first_comings(group: Sequence[Brought], stored: Stored) -> list[Result]:
    """Return for each request whether all of it came for the first time."""
    left = set(stored.deliveries)
    found: list[Result] = []
    for brought in group:
        places = {(one.source, one.delivery) for one in brought.records if one.delivery is not None}
        found.append(places <= left)
        left -= places
    return found


def _answer(one: _Waiting, result: Result) -> None:
    if one.stored.done():  # answered, or whoever asked has gone
        return
    if isinstance(result, Exception):
        one.stored.set_exception(result)
    else:
        one.stored.set_result(result)
