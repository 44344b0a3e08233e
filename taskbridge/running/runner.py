"""The story of one run: begin, claim, sweep batch by batch (read, deliver, advance), settle.

At most one run of a tenant is between begin and settle with the current token (the gate sees to that), and only the
token that owns the cursor advances it (Postgres sees to that). A run that notices that it was replaced stops without
settling; its successor owns the tenant.

`delivery.py` has how a batch is delivered, and `failures.py` what follows a failure.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

from celery.utils.serialization import get_pickleable_exception

from taskbridge.common.run_key import RunKey
from taskbridge.common.texts import error_text
from taskbridge.gate import Answer, Outcome, Queue
from taskbridge.process.runtime import Runtime
from taskbridge.process.shutdown import is_stopping
from taskbridge.running import failures
from taskbridge.running.delivery import Ending, HandlerFailed, Run, deliver, permitted
from taskbridge.store import CursorLost, StaleToken, Unread

__all__ = ["run_tenant", "run_tenants"]

log = logging.getLogger(__name__)

SHARED_BUDGET: Final = 0.05
"""Seconds after which no other run of a shared message begins. First events wait so long for its worker slot.

Where a run still goes on after twice that, those behind it become messages of their own.
"""


def run_tenant(runtime: Runtime, pipeline_name: str, tenant: str, token: str) -> None:
    """Do one run of a tenant: sweep until nothing is left or the time budget is spent.

    A late or doubled message ends here without touching anything.

    Raises:
        Exception: what the handler raised, after the failure was stored and the run was settled.
    """
    gate, pipeline = runtime.gate, runtime.pipelines[pipeline_name]
    # Ownership counts from before the call: the process may freeze before it has the answer.
    asked = time.monotonic()
    key = RunKey(pipeline_name, tenant, token)
    begun = gate.begin(key, most_runs=pipeline.max_runs)
    if isinstance(begun, Answer):
        what = "it is in the wait queue" if begun is Answer.POSTPONED else "late or doubled message, nothing to do"
        log.info("run of %s for tenant %r: %s", pipeline_name, tenant, what)
        return
    started = time.monotonic()
    with runtime.heartbeat.keep(partial(gate.beat, key), confirmed=asked) as ownership:
        run = Run(runtime, pipeline, key, begun, started, ownership)
        try:
            ending = _sweep_or_fail(run)
        except CursorLost:
            log.warning("run of %s for tenant %r: replaced by another run, stops", pipeline_name, tenant)
            return
        except StaleToken as stale:
            ending = Ending(Outcome.STALE, owner=stale.owner)
        except Exception as error:
            ending = failures.after_lost_server(run, error)
        except BaseException:
            # The process was told to end. Another takes the batch at once.
            _settle(run, Ending(Outcome.STOPPED))
            raise
        _settle(run, ending)
    if ending.error is not None:
        # Celery logs the error with its notes, and without the tenant.
        with suppress(Exception):  # an error's class may refuse a new attribute
            ending.error.add_note(f"in a run of pipeline {pipeline_name}, tenant {tenant!r}")
        if get_pickleable_exception(ending.error) is not ending.error:
            # A pool process sends another error in its place, of another type and without the note.
            log.warning("run of %s for tenant %r failed: %s", pipeline_name, tenant, error_text(ending.error))
        raise ending.error


def _settle(run: Run, ending: Ending) -> None:
    end, policy = ending.settlement(run.took, run.handled), run.pipeline.policy
    most_runs, most_handed = run.pipeline.max_runs, run.runtime.most_handed
    run.runtime.gate.settle(run.key, end, policy.spacing, most_handed=most_handed, most_runs=most_runs)


def run_tenants(runtime: Runtime, pipeline_name: str, runs: Sequence[tuple[str, str]]) -> None:
    """Do one run each of several tenants, (tenant, token) each, in their order.

    After 50 ms none of them begins any more: when the run under way ends, the rest goes to the end of the queue. If it
    still goes on 100 ms after the first began, those behind it become messages of their own while it works.

    Raises:
        Exception: what the first handler that failed raised, after all runs.
    """
    until = time.monotonic() + SHARED_BUDGET
    left, errors = deque(runs), []

    def publish_rest() -> None:
        for tenant, token in _taken(left):
            runtime.publish(Queue.NEXT, pipeline_name, tenant, token)

    timer = threading.Timer(2 * SHARED_BUDGET, publish_rest)
    timer.start()
    try:
        for tenant, token in _taken(left):
            try:
                run_tenant(runtime, pipeline_name, tenant, token)
            except Exception as error:
                log.warning("run of %s for tenant %r failed, the next goes on", pipeline_name, tenant)
                errors.append(error)
            if time.monotonic() > until or is_stopping():
                break
    finally:
        timer.cancel()
        # Also where the process was told to end: those that have not begun must not wait for their deadlines.
        if rest := list(_taken(left)):
            runtime.publish_together(pipeline_name, rest)
    if errors:
        raise errors[0]


def _taken(left: deque[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Take one after another off the left. Two threads may do so, and none is taken twice."""
    while True:
        try:
            yield left.popleft()
        except IndexError:
            return


def _sweep_or_fail(run: Run) -> Ending:
    try:
        return failures.probe(run) if run.begun.probe is not None else _sweep(run)
    except HandlerFailed as failed:
        return failures.after_failure(run, failed)
    except Unread as unread:
        return failures.after_unread(run, unread)


def _sweep(run: Run) -> Ending:
    """Read and deliver batch by batch.

    DONE: nothing is left. MORE: the budget is spent, and records are left. STOPPED: the worker stops before the budget
    is spent. RETRY: the tenant is paused, or waits for a rate limit.
    """
    page = run.claim(run.most_records())
    if run.begun.died and page.records:
        if (ending := failures.after_death(run, page)) is not None:
            return ending
        page = run.cursors.read(run.key, run.most_records())
    while True:
        if page.paused:
            return failures.PAUSED
        page, wait_ms = permitted(run, page)
        if wait_ms:
            return Ending(Outcome.RETRY, retry_ms=wait_ms)
        if page.moves_cursor:
            deliver(run, page)
        # A sweep that an earlier run began did not see what came since, so another follows before this run is done.
        if page.finished and not page.resumed:
            return Ending(Outcome.DONE)
        if not run.ownership.owned:
            raise CursorLost
        if run.is_spent or is_stopping():
            return Ending(Outcome.MORE if run.is_spent else Outcome.STOPPED)
        page = run.cursors.read(run.key, run.most_records())
