"""The change poller and the reconciler: they find every committed record, with or without an event.

What each is for
    The change poller looks at all commits a few times a second, and reminds each tenant with records that no run has
    read. So an event only makes work begin sooner; nothing else depends on it. The reconciler looks at everything that
    is still pending, whichever runs are in progress and whoever was reminded. So it repairs whatever a Redis that lost
    its data, or came back with older data, has forgotten. Both make passes over snapshots, which cost nothing for a
    tenant without new records.

Who is authoritative
    Postgres. What the poller has seen, T, and what the reconciler has seen, B, are snapshots. They are stored in
    Postgres, and only after every tenant of the pass was reminded: a pass that ends before that is repeated. A T or B
    that is older than necessary costs one more look. So two workers may make a pass at the same time, and one may
    freeze in the middle of a pass. A T or B that is too new would hide records; so each is stored only if the one that
    the pass has read is still there.

Why every page is stored
    The position where the next page begins is kept in memory. A Postgres that crashes, or fails over to a replica that
    lags, may lose its last commits, and their ids are used again. If a page has seen these commits, the new records may
    lie before the position, where no later page of the pass looks. What a page stores comes after all commits that it
    has seen in Postgres's log. So a server that lost one of these has lost the stored snapshot too, and the pass starts
    over.

Who does it
    One worker at a time for each pipeline: the one that has the hold in Redis. The hold ends half a second after the
    next pass is due. If the worker dies, freezes or gets no answer, another one takes the hold, and reconciles within
    the base interval. A thread renews the hold while a page is slow. If Redis has no hold, or an older one, it lost its
    data or came back with older data, and the reconciler starts at once.

What one pipeline may do to the others
    They wait for one page of its records, or for the timeouts of that page. A pass is made in pages, also within one
    transaction, and after each page what it has seen is stored. So no backlog is too long for a pass. A pipeline whose
    page failed pauses for a second, or longer if the page took too much time, and then repeats the same page.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import psycopg

from taskbridge.common.texts import error_line
from taskbridge.gate import Answer, PollingHold, Reminder
from taskbridge.process.runtime import Runtime
from taskbridge.store import ChangesPage, Kind, NoAnswer, Waiting, keep_runs, sum_runs

__all__ = ["Poller", "last_runs_restored", "poll_changes", "reconcile"]

log = logging.getLogger(__name__)

HOLDS_LONGER: Final = 0.5
"""The hold ends this many seconds after the next pass is due."""
STORES_EVERY: Final = 5.0
"""Seconds after which T is stored even if nothing was new, so that it lists no transactions that ended long ago."""
LONGEST_PAGE: Final = 45.0
"""Seconds for which the hold is kept for a page: more than all its timeouts together."""
RENEWS_EVERY: Final = 0.1
AFTER_FAILURE: Final = 1.0
"""Seconds for which a pipeline pauses after a page failed; also the first extra time of a page that was too slow."""
LONGEST_EXTRA: Final = 30.0
LISTENS_EVERY: Final = 1.0
LEAST_REST: Final = 0.005
"""Seconds between two pages, and between two passes if commits are announced faster than passes are made."""
HISTORY_EVERY: Final = 60.0
"""Seconds between two aggregations of the run history."""
SHORT_PASS: Final = 0.1
"""A reconciliation of up to this many seconds delays no later one: most of it may be network latency."""
SHARE: Final = 100
"""The pause after a reconciliation is SHARE x (the shortest of the last LENGTHS - SHORT_PASS)."""
LENGTHS: Final = 4
"""How many reconciliations are compared."""
LONGEST_REST: Final = 30.0
"""The longest pause, in seconds, after a reconciliation of less than LONGEST_REST / LEAST_SHARE."""
LEAST_SHARE: Final = 10
"""The pause after a longer one is LEAST_SHARE x its duration, so that a large backlog leaves time for others."""
_TOO_SLOW: Final = (psycopg.errors.QueryCanceled, NoAnswer)
"""Errors for which more time helps. It does not help against waiting for a lock, which takes as long each time."""


def poll_page(
    runtime: Runtime,
    pipeline: str,
    previous: ChangesPage | None = None,
    *,
    stores: bool = True,
    more_seconds: float = 0.0,
) -> tuple[bool, ChangesPage | None]:
    """Remind tenants with records that no run has read: the page of a pass that follows the page `previous`.

    T is stored after each page except the last of a pass, and after that one if anything was new, or if `stores` is
    set. Returns whether T was stored, and the page unless it is the last. `more_seconds`: how much longer than usual
    the page may take.
    """
    page = _read_page(runtime, pipeline, Kind.POLLER, previous=previous, more_seconds=more_seconds)
    _remind(runtime, pipeline, page.waiting, by_reconciler=False)
    stores = stores or page.fresh or page.until is not None
    if stores:
        page = runtime.changes.store_page(Kind.POLLER, pipeline, page)
    return stores, None if page.until is None else page


def reconcile_page(
    runtime: Runtime, pipeline: str, previous: ChangesPage | None = None, *, more_seconds: float = 0.0
) -> tuple[list[str], ChangesPage | None]:
    """Remind tenants with pending records, as `poll_page` does, and store B.

    Returns the tenants that get a run because of it, in their turn, and the page unless it is the last of the pass.
    """
    page = _read_page(runtime, pipeline, Kind.RECONCILER, previous=previous, more_seconds=more_seconds)
    # A tenant with a run in progress is found by the next pass, if that run leaves anything.
    started = _remind(runtime, pipeline, page.waiting, by_reconciler=True)
    page = runtime.changes.store_page(Kind.RECONCILER, pipeline, page, more_seconds)
    return started, None if page.until is None else page


def poll_changes(runtime: Runtime, pipeline: str, *, stores: bool = True) -> bool:
    """Make a whole pass of the change poller; return whether it was stored."""
    stored, page = poll_page(runtime, pipeline, stores=stores)
    while page is not None:
        stored, page = poll_page(runtime, pipeline, page, stores=False)
    return stored


def reconcile(runtime: Runtime, pipeline: str) -> list[str]:
    """Make a whole pass of the reconciler, with retries and last runs; return the tenants that get a run."""
    started, page = reconcile_page(runtime, pipeline)
    while page is not None:
        more, page = reconcile_page(runtime, pipeline, page)
        started += more
    for more in retries_and_last_runs(runtime, pipeline):
        started += more
    return started


def retries_and_last_runs(runtime: Runtime, pipeline: str) -> Iterator[list[str]]:
    """Remind tenants with records to be tried again, which no snapshot contains; then restore last runs.

    This is part of each pass of the reconciler. Yields, for each page, the tenants that get a run because of it.
    """
    source, smallest, has_delays = _source_and_delays(runtime, pipeline)
    for waiting in runtime.changes.retries(pipeline, source, smallest, has_delays=has_delays):
        yield _remind(runtime, pipeline, waiting, by_reconciler=True)
    for _ in last_runs_restored(runtime, pipeline):
        yield []


def last_runs_restored(runtime: Runtime, pipeline: str) -> Iterator[None]:
    """Write each tenant's last run to Redis, page by page, if it is missing there, so that no event starts a run early.

    This is needed if delays count from the last run: after Redis lost its data, after a delay was lengthened, and once
    a day. A reminder carries its tenant's last run. If Redis loses its data in the middle, the next pass starts over.
    """
    spacing = runtime.pipelines[pipeline].policy.spacing
    if not spacing.last_ttl or runtime.gate.rebuilt_for(pipeline) == spacing.last_ttl:
        return
    runtime.gate.begin_rebuilding(pipeline)
    for page in runtime.cursors_of(pipeline).last_runs(pipeline, spacing.last_ttl):
        runtime.gate.remember_last(pipeline, page, spacing)
        yield
    runtime.gate.mark_rebuilt(pipeline, spacing.last_ttl)


def _read_page(runtime: Runtime, pipeline: str, kind: Kind, **options: Any) -> ChangesPage:
    runtime.register(runtime.pipelines[pipeline])
    source, smallest, has_delays = _source_and_delays(runtime, pipeline)
    return runtime.changes.read_page(kind, pipeline, source, smallest, has_delays=has_delays, **options)


def _source_and_delays(runtime: Runtime, pipeline: str) -> tuple[str, int, bool]:
    """Return a pipeline's source, its smallest delay, and whether the source's records carry its own delays."""
    declared = runtime.pipelines[pipeline]
    # They may carry those of another pipeline that reads the source.
    return declared.source, declared.policy.spacing.delay, declared.criteria is not None


def _remind(runtime: Runtime, pipeline: str, waiting: list[Waiting], *, by_reconciler: bool) -> list[str]:
    keeps_last = runtime.pipelines[pipeline].policy.spacing.last_ttl > 0
    reminders = [Reminder(tenant.tenant, tenant.delay_ms, tenant.last_ms if keeps_last else None) for tenant in waiting]
    answers: list[Answer] = []
    if reminders:
        answers = runtime.gate.remind(
            pipeline,
            reminders,
            by_reconciler=by_reconciler,
            most_in_flight=runtime.most_in_flight,
            keeps_last=keeps_last,
        )
    begin = (Answer.STARTED, Answer.POSTPONED)
    return [reminder.tenant for reminder, answer in zip(reminders, answers, strict=True) if answer in begin]


def _longer(extra: float, error: Exception) -> float:
    """Return the extra time, in seconds, for the next attempt at a page that failed with `extra`."""
    return min(LONGEST_EXTRA, max(AFTER_FAILURE, extra * 2)) if isinstance(error, _TOO_SLOW) else 0.0


def rest_after(seconds: float) -> float:
    """Return the pause after reconciliations of which the shortest took `seconds`; below 0: the interval is enough."""
    return min(SHARE * (seconds - SHORT_PASS), max(LONGEST_REST, LEAST_SHARE * seconds))


@dataclass(slots=True)
class _PipelineState:
    """What this process knows of one pipeline; times are those of the monotonic clock.

    `hold`: as the gate last returned it; it is renewed until `renews_until` while a page is in progress. `lost`: how
    often Redis lost its data. `polling` and `reconciling`: the last page of an unfinished pass. `retries`: the rest of
    the retries and last runs that belong to the reconciler's pass. `started`: how many tenants got a run in that pass,
    `worked`: how long it has taken, and `lengths`: how long the last ones took. `extra` and `reconcile_extra`: how much
    longer than usual the next page of the poller or of the reconciler may take. `history_at`: when the run history is
    next aggregated.
    """

    hold: PollingHold | None = None
    holds_until: float = 0.0
    renews_until: float = 0.0
    lost: int = 0
    polling: ChangesPage | None = None
    stored_at: float = float("-inf")
    extra: float = 0.0
    rests_until: float = 0.0
    reconciling: ChangesPage | None = None
    retries: Iterator[list[str]] | None = None
    reconciles_at: float = 0.0
    reconcile_extra: float = 0.0
    history_at: float = 0.0
    started: int = 0
    worked: float = 0.0
    lengths: deque[float] = field(default_factory=lambda: deque([0.0] * LENGTHS, LENGTHS))


@dataclass(slots=True)
class Poller:
    """The change poller and the reconciler of one process.

    `poll_pages`, `reconcile_pages`, `renew_holds` and `listen` are each called repeatedly by a thread of their own.
    They return the seconds to wait until the next call.
    """

    runtime: Runtime
    states: defaultdict[str, _PipelineState] = field(default_factory=lambda: defaultdict(_PipelineState))
    _poll_lock: threading.Lock = field(default_factory=threading.Lock)
    _hold_lock: threading.Lock = field(default_factory=threading.Lock)
    _listener: psycopg.Connection[Any] | None = None

    def listen(self) -> float:
        """Wait for an announced commit, then poll."""
        if self._listener is None or self._listener.closed:
            self._listener = self.runtime.changes.listen()
            # Announcements before this were missed.
            self.poll_pages()
        if list(self._listener.notifies(timeout=LISTENS_EVERY, stop_after=1)):
            self.poll_pages()
        return LEAST_REST

    def poll_pages(self) -> float:
        """Poll a page of each pipeline whose hold this process has or can take."""
        while not self._poll_lock.acquire(timeout=LISTENS_EVERY):
            self.runtime.note_progress()  # the other thread polls
        try:
            began = time.monotonic()
            waits = [self._poll(name) for name in self.runtime.names()]
            wait = min([self.runtime.settings.tail_interval, *waits])
            return max(LEAST_REST, wait - (time.monotonic() - began))
        finally:
            self._poll_lock.release()

    def _poll(self, name: str) -> float:
        """Poll a page if this process gets the hold; return the seconds until the next attempt."""
        state, interval = self.states[name], self.runtime.settings.tail_interval
        self.runtime.note_progress()
        if state.rests_until > time.monotonic():
            return interval
        try:
            state.renews_until = time.monotonic() + LONGEST_PAGE
            if wait_ms := self._take(name, state):
                return wait_ms / 1000
            stores = time.monotonic() - state.stored_at > STORES_EVERY
            stored, state.polling = poll_page(
                self.runtime, name, state.polling, stores=stores, more_seconds=state.extra
            )
            if stored:
                state.stored_at = time.monotonic()
                # If Redis loses these reminders, it loses this hold too.
                self._take(name, state)
        except Exception as error:
            # The hold is not renewed: another worker may succeed.
            state.renews_until, state.extra = 0.0, _longer(state.extra, error)
            state.rests_until = time.monotonic() + (state.extra or AFTER_FAILURE)
            log.warning("%s: polling pauses for %.0f s: %s", name, state.extra or AFTER_FAILURE, error_line(error))
            return interval
        state.extra = 0.0
        return interval if state.polling is None else LEAST_REST

    def renew_holds(self) -> float:
        """Renew the holds of this process that would end while a page is in progress."""
        for name in self.runtime.names():
            state, now = self.states[name], time.monotonic()
            if now < state.holds_until < now + HOLDS_LONGER - RENEWS_EVERY and now < state.renews_until:
                try:
                    self._take(name, state)
                except Exception:
                    # The next poll gets the same error and logs it.
                    state.renews_until = 0.0
        return RENEWS_EVERY

    def _take(self, name: str, state: _PipelineState) -> int:
        """Take or renew the hold; return for how many milliseconds another worker has it (0: this one has it)."""
        settings = self.runtime.settings
        seconds = settings.tail_interval + HOLDS_LONGER
        with self._hold_lock:
            asked, before = time.monotonic(), state.hold
            hold = state.hold = self.runtime.gate.hold_polling(name, round(seconds * 1000), before)
            if hold.lost:
                state.lost += 1
                state.reconciles_at, state.reconciling, state.retries = 0.0, None, None
            elif before is not None and before.wait_ms and not hold.wait_ms:
                # The worker that had it may have stopped just before it reconciled.
                state.reconciles_at = min(state.reconciles_at, asked + settings.base_interval)
            state.holds_until = 0.0 if hold.wait_ms else asked + seconds
        return hold.wait_ms

    def reconcile_pages(self) -> float:
        """Reconcile a page of each pipeline that is due, if this process has its hold."""
        waits = [min(self._reconcile(name), self._remind_retries(name)) for name in self.runtime.names()]
        return min([0.25, self.runtime.settings.base_interval, *waits])

    def _reconcile(self, name: str) -> float:
        state, began, interval = self.states[name], time.monotonic(), self.runtime.settings.base_interval
        self.runtime.note_progress()
        if not state.reconciles_at <= began < state.holds_until:
            return interval
        lost, previous = state.lost, state.reconciling
        if state.retries is None and (previous is None or state.reconcile_extra):
            state.retries = retries_and_last_runs(self.runtime, name)
        self._keep_history(name, state, began)
        self.runtime.note_progress()
        try:
            started, page = reconcile_page(self.runtime, name, previous, more_seconds=state.reconcile_extra)
            if started:
                self._take(name, state)
        except Exception as error:
            state.reconcile_extra = _longer(state.reconcile_extra, error)
            state.reconciles_at = time.monotonic() + (state.reconcile_extra or AFTER_FAILURE)
            log.warning("%s: not reconciled: %s", name, error_line(error))
            return interval
        state.reconcile_extra = 0.0
        self._worked(state, began, started)
        # Redis may have lost the reminders of this pass, so a new pass begins.
        if lost != state.lost:
            return LEAST_REST
        state.reconciling = page
        if page is not None:
            return LEAST_REST
        # The shortest counts: some may be slow because a process or a server stood still, or was busy with other work.
        state.lengths.append(state.worked)
        state.worked = 0.0
        state.reconciles_at = time.monotonic() + max(interval, rest_after(min(state.lengths)))
        if state.started:
            self.runtime.orphaned[name] += state.started
            log.warning("%s: %d tenants had pending records and no run", name, state.started)
            state.started = 0
        return interval

    def _keep_history(self, name: str, state: _PipelineState, now: float) -> None:
        """Once a minute, aggregate the pipeline's run history and maintain its partitions."""
        if now < state.history_at:
            return
        state.history_at = now + HISTORY_EVERY
        days, database = self.runtime.settings.history_days, self.runtime.engine
        try:
            keep_runs(database, days)
        except Exception as error:
            log.warning("the partitions of the run history are not maintained: %s", error_line(error))
        try:
            if days:
                sum_runs(database, name)
        except Exception as error:
            log.warning("the run history of %s is not aggregated: %s", name, error_line(error))

    def _remind_retries(self, name: str) -> float:
        """Process a page of the retries and last runs; return the seconds until the next attempt."""
        state, began = self.states[name], time.monotonic()
        retries = state.retries
        if retries is None or began >= state.holds_until:
            return self.runtime.settings.base_interval
        try:
            started = next(retries, None)
        except Exception as error:
            log.warning("%s: retries and last runs: %s", name, error_line(error))
            started = None
        self._worked(state, began, started or [])
        if started is not None:
            return LEAST_REST
        if state.retries is retries:
            state.retries = None
        return self.runtime.settings.base_interval

    def _worked(self, state: _PipelineState, began: float, started: list[str]) -> None:
        state.worked += time.monotonic() - began
        state.started += len(started)
