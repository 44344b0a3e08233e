"""The tail and the base: they find every committed record, whoever wrote it and whether or not anybody notified.

What each is for
    The tail looks at all commits a few times a second, and reminds each tenant with records that no run has looked at.
    So an event makes work begin at once, and nothing else depends on it. The base looks at everything that is still
    pending, whatever runs and whoever was reminded. So it repairs what a Redis that lost its data, or came back with
    older data, has forgotten. Both are rounds over snapshots, and cost nothing for a tenant without new records.

Who is authoritative
    Postgres. What the tail has looked at, T, and what the base has, B, are snapshots. They are stored there, and only
    after every tenant of the round was reminded: a round that ends before that is made again. A T or B that is older
    than it could be costs one more look. So two workers may make a round at the same time, and one may freeze in the
    middle of a round. A T or B that is too new would hide records; so each is stored only where the one that the round
    has read is still there.

Why every page is stored
    The place where the next page begins lies in memory. A Postgres that crashes, or fails over to a replica that lags,
    may lose its last commits, and their ids are used again. If a page has seen these commits, the new records may lie
    before the place, where no later page of the round looks. What a page stores stands behind all commits that it has
    seen in Postgres's log. So a server that lost one of these has lost that too, and the round begins anew.

Who does it
    One worker at a time for each pipeline: the one that has the hold in Redis. The hold ends half a second after the
    next round is due, so if the worker dies, freezes or gets no answer, another takes it, and makes a base round within
    the base interval. A thread renews the hold while a page is slow. Where Redis has no hold, or an older one, it lost
    its data or came back with older data, and a base round begins at once.

What one pipeline may do to the others
    They wait for one page of its records, or for the time-outs of that page. A round is made in pages, also inside of
    one transaction, and after each what it has seen is stored. So no backlog is too long for a round. A pipeline whose
    page failed rests for a second, or longer if the page took too much time, and goes on with the same page.
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
from taskbridge.gate import Answer, Reminder, PollingHold
from taskbridge.process.runtime import Runtime
from taskbridge.store import ChangesPage, Kind, NoAnswer, Waiting, keep_runs, sum_runs

__all__ = ["Poller", "reconcile", "last_runs_restored", "poll_changes"]

log = logging.getLogger(__name__)

HOLDS_LONGER: Final = 0.5
"""The hold ends so many seconds after the next round is due."""
STORES_EVERY: Final = 5.0
"""Seconds after which T is stored although nothing was new, so that it lists no transactions that ended long ago."""
LONGEST_PAGE: Final = 45.0
"""Seconds for which the hold is kept for a page: more than its time-outs take together."""
RENEWS_EVERY: Final = 0.1
AFTER_FAILURE: Final = 1.0
"""Seconds for which a pipeline rests after its page failed; and the first extra time of a page that was too slow."""
LONGEST_EXTRA: Final = 30.0
LISTENS_EVERY: Final = 1.0
LEAST_REST: Final = 0.005
"""Seconds between two pages, and between two rounds where commits are announced faster than rounds are made."""
HISTORY_EVERY: Final = 60.0
"""Seconds between two times that the run history is summed."""
SHORT_ROUND: Final = 0.1
"""Seconds of a base round after which the next comes at the interval: most of it may be the way to the servers."""
SHARE: Final = 100
"""The rest after a base round is SHARE x (what the quickest of the last LENGTHS took - SHORT_ROUND)."""
LENGTHS: Final = 4
"""Base rounds of which the quickest counts."""
LONGEST_REST: Final = 30.0
"""Seconds of the longest rest after a base round that took less than LONGEST_REST / LEAST_SHARE."""
LEAST_SHARE: Final = 10
"""The rest after a longer one is LEAST_SHARE x what it took, so that a large backlog leaves time for others."""
_TOO_SLOW: Final = (psycopg.errors.QueryCanceled, NoAnswer)
"""More time helps. It does not where a lock is waited for, which takes as long each time."""


def poll_page(
    runtime: Runtime, pipeline: str, previous: ChangesPage | None = None, *, stores: bool = True, more_seconds: float = 0.0
) -> tuple[bool, ChangesPage | None]:
    """Remind tenants with records that no run has looked at: the page of a round that follows the page `previous`.

    T is stored after each page but the round's last, and after that if anything was new, or if it `stores`. Returns
    whether T was stored, and the page if it is not the last. `more_seconds`: how much longer than usual it may take.
    """
    found = _look(runtime, pipeline, Kind.POLLER, previous=previous, more_seconds=more_seconds)
    _remind(runtime, pipeline, found.waiting, by_reconciler=False)
    stores = stores or found.fresh or found.until is not None
    if stores:
        found = runtime.changes.store_page(Kind.POLLER, pipeline, found)
    return stores, None if found.until is None else found


def reconcile_page(
    runtime: Runtime, pipeline: str, previous: ChangesPage | None = None, *, more_seconds: float = 0.0
) -> tuple[list[str], ChangesPage | None]:
    """Remind tenants with pending records, as `poll_page` does, and store B.

    Returns the tenants that get a run by it, in their turn, and the page if it is not the round's last.
    """
    found = _look(runtime, pipeline, Kind.RECONCILER, previous=previous, more_seconds=more_seconds)
    # Whoever has a run under way is found by the next round, if that run leaves anything.
    started = _remind(runtime, pipeline, found.waiting, by_reconciler=True)
    found = runtime.changes.store_page(Kind.RECONCILER, pipeline, found, more_seconds)
    return started, None if found.until is None else found


def poll_changes(runtime: Runtime, pipeline: str, *, stores: bool = True) -> bool:
    """Make all pages of a round of the tail; return whether it was stored."""
    stored, page = poll_page(runtime, pipeline, stores=stores)
    while page is not None:
        stored, page = poll_page(runtime, pipeline, page, stores=False)
    return stored


def reconcile(runtime: Runtime, pipeline: str) -> list[str]:
    """Make all pages of a base round, and of what goes with it; return the tenants that get a run, in their turn."""
    started, page = reconcile_page(runtime, pipeline)
    while page is not None:
        more, page = reconcile_page(runtime, pipeline, page)
        started += more
    for more in retries_and_last_runs(runtime, pipeline):
        started += more
    return started


def retries_and_last_runs(runtime: Runtime, pipeline: str) -> Iterator[list[str]]:
    """Remind tenants with records to be tried again, which no snapshot knows of; then restore last runs.

    It goes with each base round. Yields, for each page, the tenants that get a run by it.
    """
    source, smallest, has_delays = _source_and_delays(runtime, pipeline)
    for waiting in runtime.changes.retries(pipeline, source, smallest, has_delays=has_delays):
        yield _remind(runtime, pipeline, waiting, by_reconciler=True)
    for _ in last_runs_restored(runtime, pipeline):
        yield []


def last_runs_restored(runtime: Runtime, pipeline: str) -> Iterator[None]:
    """Tell Redis, page by page, when tenants ran last, if it does not know: an event must not start a run too early.

    It is needed where delays count from the last run: after Redis lost its data, when a delay was lengthened, and once
    a day. A reminder brings its tenant's last run with it. If Redis loses its data in the middle, the next round begins
    anew.
    """
    spacing = runtime.pipelines[pipeline].policy.spacing
    if not spacing.last_ttl or runtime.gate.rebuilt_for(pipeline) == spacing.last_ttl:
        return
    runtime.gate.begin_rebuilding(pipeline)
    for page in runtime.cursors_of(pipeline).last_runs(pipeline, spacing.last_ttl):
        runtime.gate.remember_last(pipeline, page, spacing)
        yield
    runtime.gate.mark_rebuilt(pipeline, spacing.last_ttl)


def _look(runtime: Runtime, pipeline: str, kind: Kind, **options: Any) -> ChangesPage:
    runtime.register(runtime.pipelines[pipeline])
    source, smallest, has_delays = _source_and_delays(runtime, pipeline)
    return runtime.changes.read_page(kind, pipeline, source, smallest, has_delays=has_delays, **options)


def _source_and_delays(runtime: Runtime, pipeline: str) -> tuple[str, int, bool]:
    """Return a pipeline's source, its smallest delay, and whether the delays of the source's records are its own."""
    declared = runtime.pipelines[pipeline]
    # They may be those of another pipeline of the source.
    return declared.source, declared.policy.spacing.delay, declared.criteria is not None


def _remind(runtime: Runtime, pipeline: str, waiting: list[Waiting], *, by_reconciler: bool) -> list[str]:
    keeps_last = runtime.pipelines[pipeline].policy.spacing.last_ttl > 0
    reminders = [Reminder(one.tenant, one.delay_ms, one.last_ms if keeps_last else None) for one in waiting]
    answers: list[Answer] = []
    if reminders:
        answers = runtime.gate.remind(
            pipeline, reminders, by_reconciler=by_reconciler, most_in_flight=runtime.most_in_flight, keeps_last=keeps_last
        )
    begin = (Answer.STARTED, Answer.POSTPONED)
    return [reminder.tenant for reminder, answer in zip(reminders, answers, strict=True) if answer in begin]


def _longer(extra: float, error: Exception) -> float:
    """Return the extra time of a page's next try, in seconds, after its last try with `extra` failed."""
    return min(LONGEST_EXTRA, max(AFTER_FAILURE, extra * 2)) if isinstance(error, _TOO_SLOW) else 0.0


def rest_after(seconds: float) -> float:
    """Return the rest after base rounds of which the quickest took so many seconds; below 0: the interval is enough."""
    return min(SHARE * (seconds - SHORT_ROUND), max(LONGEST_REST, LEAST_SHARE * seconds))


@dataclass(slots=True)
class _PipelineState:
    """What this process knows of the rounds of one pipeline; times are those of the monotonic clock.

    `hold`: as the gate gave it last. `renews_until`: so long it is renewed while a page is under way. `lost`: how
    often Redis lost its data. `tail` and `base`: the last page of a round that is under way. `beside`: the retries and
    last runs that go with the base round. `started`: how many tenants this base round gave a run. `worked`: seconds of
    this base round, and `lengths` of the last ones. `extra` and `reconcile_extra`: seconds that the next page of the
    tail or the base may take longer than usual. `history_at`: when its run history is next summed.
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
    """The rounds of one process.

    `poll_pages`, `reconcile_pages`, `renew_holds` and `listen` are each called by a thread of their own, again and again.
    They return the seconds to wait until the next call.
    """

    runtime: Runtime
    states: defaultdict[str, _PipelineState] = field(default_factory=lambda: defaultdict(_PipelineState))
    _tail_lock: threading.Lock = field(default_factory=threading.Lock)
    _hold_lock: threading.Lock = field(default_factory=threading.Lock)
    _listener: psycopg.Connection[Any] | None = None

    def listen(self) -> float:
        """Wait for a commit that is announced, then make pages of the tail."""
        if self._listener is None or self._listener.closed:
            self._listener = self.runtime.changes.listen()
            # Announcements before this were missed.
            self.poll_pages()
        if list(self._listener.notifies(timeout=LISTENS_EVERY, stop_after=1)):
            self.poll_pages()
        return LEAST_REST

    def poll_pages(self) -> float:
        """Make a page of the tail of each pipeline whose hold this process has or can take."""
        with self._tail_lock:
            began = time.monotonic()
            waits = [self._poll(name) for name in self.runtime.pipelines.names()]
            wait = min([self.runtime.settings.tail_interval, *waits])
            return max(LEAST_REST, wait - (time.monotonic() - began))

    def _poll(self, name: str) -> float:
        """Make a page if this process gets the hold; return the seconds until it is worth asking again."""
        state, interval = self.states[name], self.runtime.settings.tail_interval
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
                # If Redis forgets these reminders, it forgets this hold too.
                self._take(name, state)
        except Exception as error:
            # The hold is not renewed, since another worker may have more luck.
            state.renews_until, state.extra = 0.0, _longer(state.extra, error)
            state.rests_until = time.monotonic() + (state.extra or AFTER_FAILURE)
            log.warning("tail of %s: none for %.0f s: %s", name, state.extra or AFTER_FAILURE, error_line(error))
            return interval
        state.extra = 0.0
        return interval if state.polling is None else LEAST_REST

    def renew_holds(self) -> float:
        """Renew the holds of this process that would end while a page is under way."""
        for name in self.runtime.pipelines.names():
            state, now = self.states[name], time.monotonic()
            if now < state.holds_until < now + HOLDS_LONGER - RENEWS_EVERY and now < state.renews_until:
                try:
                    self._take(name, state)
                except Exception:
                    # The next page of the tail meets the same error, and logs it.
                    state.renews_until = 0.0
        return RENEWS_EVERY

    def _take(self, name: str, state: _PipelineState) -> int:
        """Take the hold, or renew it; return for how many milliseconds another worker has it (0: this one has it)."""
        settings = self.runtime.settings
        seconds = settings.tail_interval + HOLDS_LONGER
        with self._hold_lock:
            asked, before = time.monotonic(), state.hold
            hold = state.hold = self.runtime.gate.hold_polling(name, round(seconds * 1000), before)
            if hold.lost:
                state.lost += 1
                state.reconciles_at, state.reconciling, state.retries = 0.0, None, None
            elif before is not None and before.wait_ms and not hold.wait_ms:
                # The worker that had it may have stopped just before it made a base round.
                state.reconciles_at = min(state.reconciles_at, asked + settings.base_interval)
            state.holds_until = 0.0 if hold.wait_ms else asked + seconds
        return hold.wait_ms

    def reconcile_pages(self) -> float:
        """Make a page of the base round of each pipeline where one is due, if this process has the hold."""
        waits = [min(self._reconcile(name), self._remind_retries(name)) for name in self.runtime.pipelines.names()]
        return min([0.25, self.runtime.settings.base_interval, *waits])

    def _reconcile(self, name: str) -> float:
        state, began, interval = self.states[name], time.monotonic(), self.runtime.settings.base_interval
        if not state.reconciles_at <= began < state.holds_until:
            return interval
        lost, previous = state.lost, state.reconciling
        if state.retries is None and (previous is None or state.reconcile_extra):
            state.retries = retries_and_last_runs(self.runtime, name)
        self._keep_history(name, state, began)
        try:
            started, page = reconcile_page(self.runtime, name, previous, more_seconds=state.reconcile_extra)
            if started:
                self._take(name, state)
        except Exception as error:
            state.reconcile_extra = _longer(state.reconcile_extra, error)
            state.reconciles_at = time.monotonic() + (state.reconcile_extra or AFTER_FAILURE)
            log.warning("base of %s: %s", name, error_line(error))
            return interval
        state.reconcile_extra = 0.0
        self._worked(state, began, started)
        # Redis may have lost what this round reminded, so a new one begins.
        if lost != state.lost:
            return LEAST_REST
        state.reconciling = page
        if page is not None:
            return LEAST_REST
        # The quickest counts: some may take long because a process or a server stood still, or others were at work.
        state.lengths.append(state.worked)
        state.worked = 0.0
        state.reconciles_at = time.monotonic() + max(interval, rest_after(min(state.lengths)))
        if state.started:
            self.runtime.orphaned[name] += state.started
            log.warning("%s: %d tenants had pending records and no run", name, state.started)
            state.started = 0
        return interval

    def _keep_history(self, name: str, state: _PipelineState, now: float) -> None:
        """Once a minute sum the pipeline's run history, and see to its partitions."""
        if now < state.history_at:
            return
        state.history_at = now + HISTORY_EVERY
        days, database = self.runtime.settings.history_days, self.runtime.database
        try:
            keep_runs(database, days)
        except Exception as error:
            log.warning("the days of the run history are not seen to: %s", error_line(error))
        try:
            if days:
                sum_runs(database, name)
        except Exception as error:
            log.warning("the run history of %s is not summed: %s", name, error_line(error))

    def _remind_retries(self, name: str) -> float:
        """Make a page of the retries and last runs; return the seconds until it is worth asking again."""
        state, began = self.states[name], time.monotonic()
        beside = state.retries
        if beside is None or began >= state.holds_until:
            return self.runtime.settings.base_interval
        try:
            started = next(beside, None)
        except Exception as error:
            log.warning("base of %s: retries and last runs: %s", name, error_line(error))
            started = None
        self._worked(state, began, started or [])
        if started is not None:
            return LEAST_REST
        if state.retries is beside:
            state.retries = None
        return self.runtime.settings.base_interval

    def _worked(self, state: _PipelineState, began: float, started: list[str]) -> None:
        state.worked += time.monotonic() - began
        state.started += len(started)
