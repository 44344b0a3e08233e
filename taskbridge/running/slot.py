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
import random
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import accumulate
from typing import Any, Final, NoReturn, TypeVar

from taskbridge.common.run_key import RunKey
from taskbridge.common.seldom import Seldom
from taskbridge.common.texts import error_text, log_error, short_traceback, storable
from taskbridge.errors import RunFailed
from taskbridge.gate import Answer
from taskbridge.gate.message import PROBE
from taskbridge.process.runtime import Runtime
from taskbridge.process.shutdown import is_stopping
from taskbridge.running.delivery import SLICE, Advance, GivenBack, Settle, Steps
from taskbridge.running.history import last_row
from taskbridge.running.runner import run_steps
from taskbridge.store import (
    CLAIMED_WITHIN,
    Claim,
    CursorLost,
    Cursors,
    NoAnswer,
    advance,
    advance_together,
    is_without_session,
    write_runs,
)

__all__ = ["run_tenant", "run_together", "work"]

log = logging.getLogger(__name__)

T = TypeVar("T")

MOST_AT_ONCE: Final = 16
"""Runs that begin together."""
ADVANCED_WITHIN: Final = 0.01
"""Seconds after which what handlers have done is advanced before another handler is called."""
REST: Final = 1.0
"""Seconds for which a slot without a session of Postgres takes no run, at the most."""
LONGEST_FAILURE: Final = 1_000
"""The most characters of the text that Celery has of a failed run."""
_seldom: Final = Seldom()


def work(runtime: Runtime, pipeline: str, tenant: str, token: str) -> None:
    """Do the run of a message, and more runs as long as the slice lasts.

    Raises:
        RunFailed: the message's run failed; raised after all runs. The failures of the others are logged.
    """
    until, message, error = time.monotonic() + SLICE, RunKey(pipeline, tenant, token), None
    if not _declined(runtime, [message] if pipeline not in runtime.pipelines.names() else []):
        (error,) = run_together(runtime, [message])
    if error is not None and is_without_session(error):
        _rest(error)
        return
    try:
        while (keys := _more(runtime, left := until - time.monotonic())) is not None:
            for key, other in zip(keys, run_together(runtime, keys, left), strict=True):
                if other is not None:
                    log_error(log, other, "run of %s for tenant %r failed", *key[:2])
    except Exception as lost:
        # It says nothing of the message's own run, which has ended.
        log.warning("more runs could not be taken; their deadlines publish them again: %s", error_text(lost))
    if error is not None:
        _fail(message, error)


def _fail(key: RunKey, error: Exception) -> NoReturn:
    """Raise what Celery is to know of a failed run."""
    text = f"run of pipeline {key.pipeline}, tenant {key.tenant!r}, failed: {error_text(error)}"
    failure = RunFailed(storable(text, LONGEST_FAILURE))
    if short_traceback(error)[1]:
        raise failure from error
    # Celery sends and logs the tracebacks of all causes, however long they are.
    log_error(log, error, "run of %s for tenant %r failed", *key[:2])
    raise failure.with_traceback(error.__traceback__) from None


def run_tenant(runtime: Runtime, pipeline: str, tenant: str, token: str) -> None:
    """Do one run of a tenant. A late or doubled message ends here without touching anything.

    Raises:
        Exception: what the handler raised, after the failure was written down and the tenant waits for its back-off.
    """
    (error,) = run_together(runtime, [RunKey(pipeline, tenant, token)])
    if error is not None:
        raise error


def _rest(error: Exception) -> None:
    """Leave runs to slots that have a session of Postgres: one without ends a run so soon that it would get the most.

    The run that found none is not lost, nor has it failed: it is in the queue again.
    """
    if count := _seldom.counted("sessions"):
        log.warning(
            "a slot of this worker has no session of Postgres and leaves its runs to other slots (%d times since it "
            "last said so): allow more sessions than there are slots, or start fewer slots (-c): %s",
            count,
            error_text(error),
        )
    time.sleep(random.uniform(REST / 2, REST))  # noqa: S311 - jitter, not a secret


def _declined(runtime: Runtime, keys: Sequence[RunKey]) -> bool:
    """Give up the runs whose pipelines this worker does not declare; return whether there were any.

    While a new pipeline is deployed, workers of before serve its queues too. A probe is answered.
    """
    if not keys:
        return False
    for key in keys:
        if key.pipeline == PROBE:
            runtime.gate.answer(key.token, runtime.worker)
    keys = [key for key in keys if key.pipeline != PROBE]
    if not keys:
        return True
    runtime.gate.decline(keys)
    # Where they had their turn, others have it now: no run ends that would give the next one.
    handed, waiting = runtime.gate.turns(len(keys))
    runtime.gate.publish_turns(waiting[: max(0, runtime.most_handed - handed)])
    for key in keys:
        if count := _seldom.counted(key.pipeline):
            log.warning(
                "this worker does not declare the pipeline %s, and declined %d of its runs since it last said so, now "
                "that of tenant %r: a worker that declares it does them",
                *(key.pipeline, count, key.tenant),
            )
    return True


def _more(runtime: Runtime, left: float) -> list[RunKey] | None:
    """Take as many runs from the queues as are done in `left` seconds, going by their handlers' last calls.

    None: there are no more, or none that is done so soon.
    """
    most_first, most_next = (MOST_AT_ONCE if queue in runtime.taken_from else 0 for queue in runtime.keys.queues)
    if left <= 0 or is_stopping() or not (most_first or most_next):
        return None
    declared = set(runtime.pipelines.names())
    found, turns = runtime.gate.take(most_first, most_next)
    # Who waits for a turn has it now, if that is done soon too. None is left in the queue, where deadlines would wait
    # behind it.
    pipelines = [message.run.pipeline for message in found] + [member.partition(":")[0] for member in turns]
    if given := turns[: max(0, _done_within(runtime, pipelines, left) - len(found))]:
        runtime.gate.publish_turns(given)
        found += runtime.gate.take(0, len(given))[0]
    declined = _declined(runtime, [message.run for message in found if message.run.pipeline not in declared])
    messages = [message for message in found if message.run.pipeline in declared]
    taken = _done_within(runtime, [message.run.pipeline for message in messages], left)
    if messages[taken:]:
        runtime.gate.put_back(messages[taken:])
    return [message.run for message in messages[:taken]] if taken or declined else None


def _done_within(runtime: Runtime, pipelines: Sequence[str], seconds: float) -> int:
    """Return how many runs of these pipelines, one after the other, are done in `seconds`."""
    calls = accumulate(runtime.paces[pipeline].small_call or math.inf for pipeline in pipelines)
    return sum(1 for ends in calls if ends < seconds)


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
    if not keys:
        return []
    asked = time.monotonic()
    pipelines = [runtime.pipelines[key.pipeline] for key in keys]
    asking = [(key, one.max_runs) for key, one in zip(keys, pipelines, strict=True)]
    begun = runtime.gate.begin_many(asking, runtime.worker)
    running: dict[int, _Running] = {}
    for at, (key, pipeline, answer) in enumerate(zip(keys, pipelines, begun, strict=True)):
        if isinstance(answer, Answer):
            what = "it is in the wait queue" if answer is Answer.POSTPONED else "late or doubled message, nothing to do"
            log.info("run of %s for tenant %r: %s", key.pipeline, key.tenant, what)
        else:
            steps = run_steps(runtime, pipeline, key, answer, asked=asked, began_together=len(keys))
            running[at] = _Running(steps)
    turn = _Turn(runtime, [*running.values()])
    try:
        turn.work(seconds)
    finally:
        # Where the process was told to end: what handlers have done is done, and the others come again elsewhere.
        turn.finish([one for one in running.values() if isinstance(one.request, Advance | Settle)])
        for one in running.values():
            with suppress(Exception):
                one.steps.close()
    return [running[at].error if at in running else None for at in range(len(keys))]


class _Turn:
    """What is left of runs that began together. Two threads may take from it, and never the same run.

    Nobody waits for what may take long for another, as a lock or a silent server: who needs that comes after all
    others, and waits as long as a run that is alone.
    """

    def __init__(self, runtime: Runtime, running: Sequence[_Running]) -> None:
        self._runtime = runtime
        self._running = running
        self._waiting: deque[tuple[_Running, Any]] = deque()
        """Runs whose handlers are to be called, with what came of their claims."""
        self._done: deque[_Running] = deque()
        """Runs whose handlers were called."""
        self._last: deque[tuple[_Running, Any]] = deque()
        """Runs that come after the others, with what they are to be told (`_ASK`: what comes of what they ask for)."""

    def work(self, seconds: float) -> None:
        """Claim all cursors, call one handler after another, and finish all runs."""
        if len(self._running) == 1:
            self._last.append((self._running[0], _ASK))
            self._do_the_last()
            return
        claiming = [one for one in self._running if isinstance(one.request, Claim)]
        self._done.extend(one for one in self._running if one not in claiming)
        for one, page in self._answered(claiming):
            self._waiting.append((one, page))
        with self._relieved(seconds):
            self._call()
            self._finish_done()
            self._do_the_last()
        self._do_the_last()

    def _call(self) -> None:
        advanced = time.monotonic()
        while found := _first_of(self._waiting):
            if time.monotonic() - advanced > ADVANCED_WITHIN:
                self._finish_done()
                advanced = time.monotonic()
            one, page = found
            one.go_on(page)
            self._done.append(one)

    def _do_the_last(self) -> None:
        while found := _first_of(self._last):
            one, told = found
            one.go_on(_alone(self._runtime, one.request) if told is _ASK else told)
            while one.request is not None:
                one.go_on(_alone(self._runtime, one.request))

    def _finish_done(self) -> None:
        self.finish([*_all_of(self._done)])

    def finish(self, running: Sequence[_Running]) -> None:
        """Do what runs ask for until they have ended, what is of one kind at once; what may take long comes last."""
        asking = list(running)
        while asking := [one for one in asking if one.request is not None]:
            kind = type(asking[0].request)
            same = [one for one in asking if isinstance(one.request, kind)]
            asking = [one for one in asking if one not in same]
            for one, told in self._answered(same):
                one.go_on(told)
                asking.append(one)

    def _answered(self, running: Sequence[_Running]) -> list[tuple[_Running, Any]]:
        """Do what runs ask for, in one exchange; return what to tell them, but for those that come last."""
        found: list[tuple[_Running, Any]] = []
        for one, told in zip(running, _together(self._runtime, [one.request for one in running]), strict=True):
            takes_long = isinstance(told, Exception) and not isinstance(told, GivenBack | CursorLost)
            if told is _ASK or (takes_long and not isinstance(one.request, Settle)):
                self._last.append((one, told))
            else:
                found.append((one, told))
        return found

    @contextmanager
    def _relieved(self, seconds: float) -> Iterator[None]:
        """After `seconds` of the block let another thread finish those that are done, and give back those that wait.

        A handler may go on for ever, and others must not wait for it. Those that come last wait for the time budget of
        a run, since what they found out is lost when they are given back.
        """
        over, ended = threading.Event(), threading.Event()

        def relieve() -> None:
            try:
                self._relieve(over, seconds)
            finally:
                ended.set()

        threading.Thread(target=relieve, name="taskbridge-relief", daemon=True).start()
        try:
            yield
        finally:
            over.set()
            _wait_for(ended)

    def _relieve(self, over: threading.Event, seconds: float) -> None:
        if over.wait(min(seconds, threading.TIMEOUT_MAX)):
            return
        self._give_back([one for one, _ in _all_of(self._waiting)])
        self._finish_done()
        if not over.wait(self._runtime.settings.run_budget):
            self._give_back([one for one, _ in _all_of(self._last)])

    def _give_back(self, running: Sequence[_Running]) -> None:
        for one in running:
            one.go_on(GivenBack())
        # Each goes to the front of its queue, so the first one last.
        self.finish(running[::-1])


_ASK: Final = object()
"""In place of an answer: it may take long to get one."""


def _wait_for(ended: threading.Event) -> None:
    """Wait for a thread, also where this one is told to end meanwhile: they would work on the same runs."""
    told: BaseException | None = None
    while not ended.is_set():
        try:
            # Not `join`: one that is interrupted takes the thread for ended.
            ended.wait()
        except BaseException as error:
            told = told or error
    if told is not None:
        raise told


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


def _alone(runtime: Runtime, request: Any) -> Any:
    """Do what a run asks for, however long that takes; return what came of it, an error too."""
    try:
        if isinstance(request, Claim):
            return runtime.cursors_of(request.key.pipeline).claim(request)
        if isinstance(request, Advance):
            return advance(runtime.database, request.move)
        if isinstance(request, Settle):
            return _settle(runtime, [request])[0]
    except Exception as error:
        return error
    return None


def _together(runtime: Runtime, requests: Sequence[Any]) -> Sequence[Any]:
    """Do what requests of one kind ask for, in one exchange; return what came of each, errors too, or `_ASK`."""
    if not requests:
        return []
    try:
        if isinstance(requests[0], Claim):
            return _claim(runtime, requests)
        if isinstance(requests[0], Advance):
            found = advance_together(runtime.database, [one.move for one in requests])
            return [_ASK if moved is None else moved for moved in found]
        if isinstance(requests[0], Settle):
            return _settle(runtime, requests)
    except Exception as error:
        if isinstance(requests[0], Settle):
            return [error] * len(requests)
        # One run does what is to be done about it.
        return [error, *(GivenBack() for _ in requests[1:])]
    return [_ASK] * len(requests)


def _settle(runtime: Runtime, settles: Sequence[Settle]) -> list[Answer]:
    """Tell the gate how runs end, and after that the run history of those whose advance or failure has not done it."""
    answers = runtime.gate.settle_many([one.run.end(one.ending) for one in settles], most_handed=runtime.most_handed)
    if rows := [row for one in settles if (row := last_row(one.run, one.ending))]:
        write_runs(runtime.database, rows)
    return answers


def _claim(runtime: Runtime, claims: Sequence[Claim]) -> list[Any]:
    """Claim cursors, those over one source in one exchange; after `CLAIMED_WITHIN` the rest is given back."""
    by_source: dict[Cursors, list[int]] = {}
    for at, claim in enumerate(claims):
        by_source.setdefault(runtime.cursors_of(claim.key.pipeline), []).append(at)
    found: dict[int, Any] = {at: GivenBack() for at in range(len(claims))}
    ends = time.monotonic() + CLAIMED_WITHIN
    for cursors, places in by_source.items():
        if time.monotonic() > ends:
            break
        try:
            pages = cursors.claim_together([claims[at] for at in places])
        except NoAnswer:
            # Which of them took so long, nobody knows.
            found[places[0]] = _ASK
            break
        except Exception as error:
            found[places[0]] = error
            break
        found |= zip(places, [_ASK if page is None else page for page in pages], strict=True)
    return [found[at] for at in range(len(claims))]
