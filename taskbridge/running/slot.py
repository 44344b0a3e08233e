"""One worker slot: it does the run of a message, and for a while takes more runs straight from the queues.

Celery's main process needs longer for a message than a short run takes. So a run that ends within its slice is followed
by the next ones of the queues, several at a time. What they ask of Redis and of Postgres goes in one exchange, their
advances in one commit. While the system is idle a message is one run.

Nobody waits longer than a slice and one call behind other tenants' handlers: only runs whose handlers are known to be
quick are taken, as many as are done within the slice, and the others are put back. Where a handler was slower than
expected, those that have begun and wait behind it are given back when it is done.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Final

from taskbridge.common.run_key import RunKey
from taskbridge.common.texts import error_text
from taskbridge.gate import Answer
from taskbridge.process.runtime import Runtime
from taskbridge.process.shutdown import is_stopping
from taskbridge.running.delivery import SLICE, Advance, Alone, GivenBack, Settle, Steps
from taskbridge.running.runner import story
from taskbridge.store import Claim, Cursors, advance

__all__ = ["run_tenant", "run_together", "work"]

log = logging.getLogger(__name__)

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


class _Story:
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

    Those whose handlers would be called more than `seconds` after the first one are given back: others take them.
    """
    asked = time.monotonic()
    pipelines = [runtime.pipelines[key.pipeline] for key in keys]
    begun = runtime.gate.begin_many([(key, one.max_runs) for key, one in zip(keys, pipelines, strict=True)])
    stories: dict[int, _Story] = {}
    for at, (key, pipeline, answer) in enumerate(zip(keys, pipelines, begun, strict=True)):
        if isinstance(answer, Answer):
            what = "it is in the wait queue" if answer is Answer.POSTPONED else "late or doubled message, nothing to do"
            log.info("run of %s for tenant %r: %s", key.pipeline, key.tenant, what)
        else:
            steps = story(runtime, pipeline, key, answer, asked=asked, company=len(keys))
            stories[at] = _Story(steps)
    try:
        _deliver(runtime, [*stories.values()], seconds)
    finally:
        # Where the process was told to end: what handlers have done is done, and the others come again elsewhere.
        _finish(runtime, [one for one in stories.values() if isinstance(one.request, Advance | Settle)])
        for one in stories.values():
            one.steps.close()
    return [stories[at].error if at in stories else None for at in range(len(keys))]


def _deliver(runtime: Runtime, stories: Sequence[_Story], seconds: float) -> None:
    """Claim all cursors, and call one handler after another."""
    claiming = [one for one in stories if isinstance(one.request, Claim)]
    done = [one for one in stories if one not in claiming]
    alone: list[_Story] = []
    pages = _exchange(runtime, [one.request for one in claiming])
    began = advanced = time.monotonic()
    for one, page in zip(claiming, pages, strict=True):
        now = time.monotonic()
        if now - advanced > ADVANCED_WITHIN:
            _finish(runtime, done)
            done, advanced = [], time.monotonic()
        one.go_on(GivenBack() if now - began > seconds else page)
        (alone if isinstance(one.request, Alone) else done).append(one)
    _finish(runtime, done)
    for one in alone:
        _finish(runtime, [one])


def _finish(runtime: Runtime, stories: Sequence[_Story]) -> None:
    """Do what runs ask for until they have ended, what is of one kind at once."""
    while asking := [one for one in stories if one.request is not None]:
        kind = type(asking[0].request)
        same = [one for one in asking if isinstance(one.request, kind)]
        for one, told in zip(same, _exchange(runtime, [one.request for one in same]), strict=True):
            one.go_on(told)


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
            return runtime.gate.settle_many(ends, most_handed=runtime.most_handed)
    except Exception as error:
        return [error] * len(requests)
    return [None] * len(requests)


def _claim(runtime: Runtime, claims: Sequence[Claim]) -> list[Any]:
    """Claim cursors, those over one source in one exchange."""
    by_source: dict[Cursors, list[int]] = {}
    for at, claim in enumerate(claims):
        by_source.setdefault(runtime.cursors_of(claim.key.pipeline), []).append(at)
    pages: dict[int, Any] = {}
    for cursors, places in by_source.items():
        pages |= zip(places, cursors.claim_together([claims[at] for at in places]), strict=True)
    return [pages[at] for at in range(len(claims))]
