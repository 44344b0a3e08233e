"""One worker slot: it does the run of a message, and for a while takes more runs straight from the queues.

Celery's main process needs longer for a message than a short run takes. So a run that ends within its slice is followed
by the next ones of the queues, several at a time. What they ask of Redis and of Postgres goes in one exchange, their
advances in one commit. While the system is idle a message is one run.

Nobody waits longer than a slice and one call behind other tenants' handlers: only runs whose handlers are known to be
quick are taken, as many as are done within the slice, and the others are put back. Where a handler was slower than
expected, or never ends, those that have begun and wait behind it are given back.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from typing import Any, Final, TypeVar

from taskbridge.common.run_key import RunKey
from taskbridge.common.texts import error_text
from taskbridge.gate import Answer
from taskbridge.process.runtime import Runtime
from taskbridge.process.shutdown import is_stopping
from taskbridge.running.delivery import SLICE, Advance, AfterTheOthers, GivenBack, Settle, Steps
from taskbridge.running.runner import run_steps
from taskbridge.store import Claim, Cursors, advance, is_busy

__all__ = ["run_tenant", "run_together", "work"]

log = logging.getLogger(__name__)

T = TypeVar("T")

MOST_AT_ONCE: Final = 16
"""Runs that begin together."""
ADVANCED_WITHIN: Final = 0.01
"""Seconds after which what handlers have done is advanced before another handler is called."""


def work(runtime: Runtime, pipeline: str, tenant: str, token: str) -> None:
    """Do the run of a message, and more runs as long as the slice lasts.

    Raises:
        Exception: what the handler raised in the message's run, after all runs. What others raised is logged.
    """
    until = time.monotonic() + SLICE
    (error,) = run_together(runtime, [RunKey(pipeline, tenant, token)])
    try:
        while keys := _more(runtime, left := until - time.monotonic()):
            for key, other in zip(keys, run_together(runtime, keys, left), strict=True):
                if other is not None:
                    log.error("run of %s for tenant %r failed", key.pipeline, key.tenant, exc_info=other)
    except Exception as lost:
        # It says nothing of the message's own run, which has ended.
        log.warning("more runs could not be taken; their deadlines publish them again: %s", error_text(lost))
    if error is not None:
        raise error


def run_tenant(runtime: Runtime, pipeline: str, tenant: str, token: str) -> None:
    """Do one run of a tenant. A late or doubled message ends here without touching anything.

    Raises:
        Exception: what the handler raised, after the failure was written down and the tenant waits for its back-off.
    """
    (error,) = run_together(runtime, [RunKey(pipeline, tenant, token)])
    if error is not None:
        raise error


def _more(runtime: Runtime, left: float) -> list[RunKey]:
    """Take as many runs from the queues as are done in `left` seconds, going by their handlers' last calls."""
    most_first, most_next = (MOST_AT_ONCE if queue in runtime.taken_from else 0 for queue in runtime.keys.queues)
    if left <= 0 or is_stopping() or not (most_first or most_next):
        return []
    messages = runtime.gate.take(most_first, most_next)
    calls = accumulate(runtime.paces[message.run.pipeline].small_call or math.inf for message in messages)
    taken = sum(1 for seconds in calls if seconds < left)
    if messages[taken:]:
        runtime.gate.put_back(messages[taken:])
    return [message.run for message in messages[:taken]]


class _Running:
    """A run that is on, with what it asks for (None: it has ended) and the error that it ended with."""

    def __init__(self, steps: Steps[None]) -> None:
        self.steps = steps
        self.request: Any = None
        self.error: Exception | None = None
        self.go_on(None)

    def go_on(self, told: Any) -> None:
        """Tell it what came of what it asked for, an error too, and let it work until it asks for something else."""
        try:
            self.request = self.steps.throw(told) if isinstance(told, Exception) else self.steps.send(told)
        except StopIteration:
            self.request = None
        except Exception as error:
            self.request, self.error = None, error


def run_together(runtime: Runtime, keys: Sequence[RunKey], seconds: float = math.inf) -> list[Exception | None]:
    """Do one run each of several tenants; return for each what its handler raised.

    Those that wait for more than `seconds` while others' handlers are called are given back: other slots take them.
    """
    asked = time.monotonic()
    pipelines = [runtime.pipelines[key.pipeline] for key in keys]
    begun = runtime.gate.begin_many([(key, one.max_runs) for key, one in zip(keys, pipelines, strict=True)])
    running: dict[int, _Running] = {}
    for at, (key, pipeline, answer) in enumerate(zip(keys, pipelines, begun, strict=True)):
        if isinstance(answer, Answer):
            what = "it is in the wait queue" if answer is Answer.POSTPONED else "late or doubled message, nothing to do"
            log.info("run of %s for tenant %r: %s", key.pipeline, key.tenant, what)
        else:
            steps = run_steps(runtime, pipeline, key, answer, asked=asked, began_together=len(keys))
            running[at] = _Running(steps)
    try:
        _deliver(runtime, [*running.values()], seconds)
    finally:
        # Where the process was told to end: what handlers have done is done, and the others come again elsewhere.
        _finish(runtime, [one for one in running.values() if isinstance(one.request, Advance | Settle)])
        for one in running.values():
            one.steps.close()
    return [running[at].error if at in running else None for at in range(len(keys))]


def _deliver(runtime: Runtime, running: Sequence[_Running], seconds: float) -> None:
    """Claim all cursors, call one handler after another, and then do what may take long, one run after another."""
    turn = _Turn(runtime, [one for one in running if not isinstance(one.request, Claim)])
    claiming = [one for one in running if isinstance(one.request, Claim)]
    for one, page in zip(claiming, _exchange(runtime, [one.request for one in claiming]), strict=True):
        if not is_busy(page):
            turn.waiting.append((one, page))
        elif turn.last:
            # Each may wait as long as a statement may, so only one of them does.
            turn.waiting.append((one, GivenBack()))
        else:
            turn.last.append(one)
    with turn.relieved(seconds):
        turn.call()


class _Turn:
    """What is left of runs that began together. Two threads may take from it, and never the same run.

    Attributes:
        waiting: runs to go on, with what came of their claims.
        last: those that go on one after another when all others are done.
        done: those whose handlers were called.
    """

    def __init__(self, runtime: Runtime, done: Sequence[_Running]) -> None:
        self._runtime = runtime
        self.waiting: deque[tuple[_Running, Any]] = deque()
        self.last: deque[_Running] = deque()
        self.done = deque(done)

    def call(self) -> None:
        """Call one handler after another, and finish all runs."""
        advanced = time.monotonic()
        while found := _first_of(self.waiting):
            if time.monotonic() - advanced > ADVANCED_WITHIN:
                self._finish_done()
                advanced = time.monotonic()
            one, page = found
            one.go_on(page)
            (self.last if isinstance(one.request, AfterTheOthers) else self.done).append(one)
        self._finish_done()
        while late := _first_of(self.last):
            _finish(self._runtime, [late])

    @contextmanager
    def relieved(self, seconds: float) -> Iterator[None]:
        """After `seconds` of the block let another thread finish those that are done, and give back those that wait.

        A handler may go on for ever, and others must not wait for it. Those that come last wait for the time budget of
        a run, since what they found out is lost when they are given back.
        """
        if len(self.waiting) + len(self.last) <= 1:
            yield
            return
        over = threading.Event()
        thread = threading.Thread(target=self._relieve, args=(over, seconds), name="taskbridge-relief", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _relieve(self, over: threading.Event, seconds: float) -> None:
        if over.wait(min(seconds, threading.TIMEOUT_MAX)):
            return
        self._give_back([one for one, _ in _all_of(self.waiting)])
        if not over.wait(self._runtime.settings.run_budget):
            self._give_back([*_all_of(self.last)])

    def _give_back(self, running: Sequence[_Running]) -> None:
        # Each goes to the front of its queue, so the first one last.
        for one in reversed(running):
            one.go_on(GivenBack())
            self.done.append(one)
        self._finish_done()

    def _finish_done(self) -> None:
        _finish(self._runtime, [*_all_of(self.done)])


def _first_of(waiting: deque[T]) -> T | None:
    """Take the first out; None: there is none."""
    try:
        return waiting.popleft()
    except IndexError:
        return None


def _all_of(waiting: deque[T]) -> Iterator[T]:
    """Take out one after another."""
    while (one := _first_of(waiting)) is not None:
        yield one


def _finish(runtime: Runtime, running: Sequence[_Running], *, again: bool = False) -> None:
    """Do what runs ask for until they have ended, what is of one kind at once.

    Where another session has locked a run's cursor, the others are finished first; `again`: this is after that.
    """
    locked: list[_Running] = []
    while asking := [one for one in running if one.request is not None and one not in locked]:
        kind = type(asking[0].request)
        same = [one for one in asking if isinstance(one.request, kind)]
        for one, told in zip(same, _exchange(runtime, [one.request for one in same]), strict=True):
            if is_busy(told) and len(same) > 1 and not again:
                locked.append(one)
            else:
                one.go_on(told)
    if locked:
        _finish(runtime, locked[:1])
        _finish(runtime, locked[1:], again=True)


def _exchange(runtime: Runtime, requests: Sequence[Any]) -> list[Any]:
    """Do what requests of one kind ask for, in one exchange; return what came of each, errors too."""
    if not requests:
        return []
    try:
        if isinstance(requests[0], Claim):
            return _claim(runtime, requests)
        if isinstance(requests[0], Advance):
            return advance(runtime.database, [one.move for one in requests])
        if isinstance(requests[0], Settle):
            ends = [one.run.end(one.ending) for one in requests]
            return list(runtime.gate.settle_many(ends, most_handed=runtime.most_handed))
    except Exception as error:
        if isinstance(requests[0], Settle):
            return [error] * len(requests)
        # Each would wait as long as this one for what it does about it.
        return [error, *(GivenBack() for _ in requests[1:])]
    return [None] * len(requests)


def _claim(runtime: Runtime, claims: Sequence[Claim]) -> list[Any]:
    """Claim cursors, those over one source in one exchange."""
    by_source: dict[Cursors, list[int]] = {}
    for at, claim in enumerate(claims):
        by_source.setdefault(runtime.cursors_of(claim.key.pipeline), []).append(at)
    pages: dict[int, Any] = dict.fromkeys(range(len(claims)))
    for cursors, places in by_source.items():
        try:
            pages |= zip(places, cursors.claim_together([claims[at] for at in places]), strict=True)
        except Exception as error:
            pages[places[0]] = error
            break
    return [GivenBack() if page is None else page for page in pages.values()]
