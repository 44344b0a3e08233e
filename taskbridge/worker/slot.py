"""One worker slot: it does the run of a message, and for a while takes more runs straight from the queues.

Celery's main process needs longer for a message than a short run takes. So a run that ends within its slice is followed
by the next ones of the queues, several at a time (`group.py`). While the system is idle a message is one run.

Nobody waits longer than a slice and one call behind other tenants' handlers: only runs whose handlers are known to be
quick are taken, as many as are done within the slice, and the others are put back. A first event for which a run made
way is taken in any case.
"""

from __future__ import annotations

import logging
import math
import random
import time
from collections.abc import Sequence
from itertools import accumulate
from typing import Final, NoReturn

from taskbridge.common.log_throttle import LogThrottle
from taskbridge.common.run_key import RunKey
from taskbridge.common.texts import error_text, log_error, short_traceback, storable
from taskbridge.errors import RunFailed
from taskbridge.gate import Message
from taskbridge.gate.message import PROBE
from taskbridge.process.runtime import Runtime
from taskbridge.process.shutdown import is_stopping
from taskbridge.store import is_without_session
from taskbridge.worker.delivery import LOOKS_EVERY, SLICE, Run
from taskbridge.worker.group import do_group
from taskbridge.worker.run import do_run

__all__ = ["run_tenant", "run_together", "work"]

log = logging.getLogger(__name__)

MOST_AT_ONCE: Final = 16
"""Runs that begin together."""
REST: Final = 1.0
"""Seconds for which a slot without a session of Postgres takes no run, at the most."""
LONGEST_FAILURE: Final = 1_000
"""The most characters of the text that Celery has of a failed run."""
_throttle: Final = LogThrottle()


def work(runtime: Runtime, pipeline: str, tenant: str, token: str) -> None:
    """Do the run of a message, and more runs as long as the slice lasts.

    Raises:
        RunFailed: the message's run failed; raised after all runs. The failures of the others are logged.
    """
    until, message = time.monotonic() + SLICE, RunKey(pipeline, tenant, token)
    run = None
    if pipeline in runtime.names():
        run = do_run(runtime, message)
    else:
        _decline(runtime, [message])
    error = None if run is None else run.error
    if error is not None and is_without_session(error):
        _rest(error)
        return
    last = [run]
    try:
        while (keys := _more(runtime, left := until - time.monotonic(), last)) is not None:
            last = _do(runtime, keys, left)
            for other in last:
                if other is not None and other.error is not None:
                    log_error(log, other.error, "run of %s for tenant %r failed", *other.key[:2])
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


def run_together(runtime: Runtime, keys: Sequence[RunKey], seconds: float = math.inf) -> list[Exception | None]:
    """Do one run each of several tenants; return for each what its handler raised.

    Those that wait for more than `seconds` while others' handlers are called are returned to the queue.
    """
    return [None if run is None else run.error for run in _do(runtime, keys, seconds)]


def _do(runtime: Runtime, keys: Sequence[RunKey], seconds: float) -> list[Run | None]:
    return do_group(runtime, keys, seconds) if len(keys) > 1 else [do_run(runtime, key) for key in keys]


def _rest(error: Exception) -> None:
    """Pause this slot: without a Postgres session it ends runs so quickly that it would take most of them.

    The run that found no session is neither lost nor failed: it is in the queue again.
    """
    if count := _throttle.counted("sessions"):
        log.warning(
            "no Postgres connection was free for a slot of this worker, which leaves its runs to other slots (%d times "
            "since the last report): allow more sessions than there are slots, or start fewer slots (-c): %s",
            count,
            error_text(error),
        )
    time.sleep(random.uniform(REST / 2, REST))  # noqa: S311 - jitter, not a secret


def _decline(runtime: Runtime, keys: Sequence[RunKey]) -> None:
    """Give up runs whose pipelines this worker does not declare. A probe is answered.

    While a new pipeline is deployed, workers of before serve its queues too.
    """
    for key in keys:
        if key.pipeline == PROBE:
            runtime.gate.answer(key.token, runtime.worker)
    keys = [key for key in keys if key.pipeline != PROBE]
    if not keys:
        return
    runtime.gate.decline(keys)
    for key in keys:
        if count := _throttle.counted(key.pipeline):
            log.warning(
                "this worker does not declare the pipeline %s, and has declined %d of its runs since the last report, "
                "most recently for tenant %r: a worker that declares it will perform them",
                *(key.pipeline, count, key.tenant),
            )


def _more(runtime: Runtime, left: float, last: Sequence[Run | None]) -> list[RunKey] | None:
    """Take as many runs from the queues as are done in `left` seconds, going by their handlers' last calls.

    If one of the `last` runs made way for a first event, that is taken instead, however long it takes: Celery's main
    process might serve a continuation before it. None: there are no more, or none that is done so soon.
    """
    if is_stopping():
        return None
    if any(run is not None and run.result is not None and run.result.made_way for run in last):
        found, _ = runtime.gate.take(1, 0)
        if found:
            return _declared(runtime, found, len(found))
    most_first, most_next = (MOST_AT_ONCE if queue in runtime.taken_from else 0 for queue in runtime.keys.queues)
    if left <= 0 or not (most_first or most_next):
        return None
    found, waiting = runtime.gate.take(most_first, most_next)
    # Who waits for a turn has it now, if that is done soon too. None is left in the queue, where deadlines would wait
    # behind it.
    pipelines = [message.run.pipeline for message in found] + [member.partition(":")[0] for member in waiting]
    if given := waiting[: max(0, _done_within(runtime, pipelines, left) - len(found))]:
        runtime.gate.publish_waiting(given)
        found += runtime.gate.take(0, len(given))[0]
    names = set(runtime.names())
    declared = [message.run.pipeline for message in found if message.run.pipeline in names]
    return _declared(runtime, found, _done_within(runtime, declared, left))


def _declared(runtime: Runtime, found: Sequence[Message], most: int) -> list[RunKey] | None:
    """Return the first `most` runs of these messages whose pipelines this worker declares; put the others back.

    None: there is nothing more to take.
    """
    names = set(runtime.names())
    messages = [message for message in found if message.run.pipeline in names]
    if unknown := [message.run for message in found if message.run.pipeline not in names]:
        _decline(runtime, unknown)
    if messages[most:]:
        runtime.gate.put_back(messages[most:])
    return [message.run for message in messages[:most]] if most or unknown else None


def _done_within(runtime: Runtime, pipelines: Sequence[str], seconds: float) -> int:
    """Return how many runs of these pipelines to do one after the other: they are done in `seconds`.

    If they need longer than `LOOKS_EVERY`, only one of them exceeds it: a first event may come in the meantime.
    """
    calls = accumulate(runtime.paces[pipeline].small_call or math.inf for pipeline in pipelines)
    ends = [end for end in calls if end < seconds]
    return min(len(ends), 1 + sum(1 for end in ends if end < LOOKS_EVERY))
