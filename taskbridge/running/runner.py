"""What one run does: begin, claim, sweep batch by batch (read, deliver, advance), settle.

At most one run of a tenant is between begin and settle with the current token (the gate sees to that), and only the
token that owns the cursor advances it (Postgres sees to that). A run that notices that it was replaced stops without
settling; its successor owns the tenant.

`delivery.py` has how a batch is delivered, `failures.py` what follows a failure, and `slot.py` how several runs share
a worker slot.
"""

from __future__ import annotations

import logging
import time
from functools import partial

from taskbridge.common.run_key import RunKey
from taskbridge.declaring.pipeline import Pipeline
from taskbridge.gate import Begun, Outcome
from taskbridge.process.runtime import Runtime
from taskbridge.process.shutdown import is_stopping, waits_for_stop
from taskbridge.running import failures
from taskbridge.running.delivery import (
    AfterTheOthers,
    Ending,
    GivenBack,
    HandlerFailed,
    Run,
    Settle,
    Steps,
    deliver,
    permitted,
)
from taskbridge.running.traces import of_run
from taskbridge.store import CursorLost, StaleToken, Unread

__all__ = ["run_steps"]

log = logging.getLogger(__name__)


def run_steps(
    runtime: Runtime, pipeline: Pipeline, key: RunKey, begun: Begun, *, asked: float, began_together: int
) -> Steps[None]:
    """Do one run of a tenant that has begun: sweep until nothing is left or the time budget is spent.

    `asked` is when it was asked to begin, in seconds of the monotonic clock: the ownership that `begin` gives is as old
    as the call, since the process may freeze before it has the answer. `began_together`: how many runs did.

    Raises:
        Exception: what the handler raised, after the failure was stored and the run was settled.
    """
    name, tenant = pipeline.name, key.tenant
    with runtime.heartbeat.keep(partial(runtime.gate.beat, key), confirmed=asked) as ownership:
        run = Run(runtime, pipeline, key, begun, time.monotonic(), ownership, began_together)
        with of_run(run) as run.trace:
            try:
                ending = yield from _sweep_or_fail(run)
            except CursorLost:
                log.warning("run of %s for tenant %r: replaced by another run, stops", name, tenant)
                return
            except StaleToken as stale:
                ending = Ending(Outcome.STALE, owner=stale.owner)
            except GivenBack:
                ending = Ending(Outcome.STOPPED)
            except Exception as error:
                ending = failures.after_lost_server(run, error)
            except BaseException as ended:
                # Where the worker was told to stop, or a run that began with this one was ended and this one waits, the
                # batch comes again at once, elsewhere. Otherwise what ended the process may be this batch, as by a hard
                # time limit, and the successor counts the attempt when the deadline has passed.
                if isinstance(ended, GeneratorExit | KeyboardInterrupt) or waits_for_stop():
                    runtime.gate.settle_many([run.end(Ending(Outcome.STOPPED))], most_handed=runtime.most_handed)
                raise
            yield Settle(run, ending)
    if ending.error is not None:
        raise ending.error


def _sweep_or_fail(run: Run) -> Steps[Ending]:
    try:
        return (yield from (_sweep(run) if run.begun.probe is None else failures.probe(run)))
    except (HandlerFailed, Unread) as error:
        failed = error
    try:
        # What follows may try other records.
        yield AfterTheOthers()
    except GivenBack:
        return failures.after_no_search(run, failed.error if isinstance(failed, Unread) else failed.exception)
    if isinstance(failed, Unread):
        return failures.after_unread(run, failed)
    return failures.after_failure(run, failed)


def _sweep(run: Run) -> Steps[Ending]:
    """Read and deliver batch by batch.

    DONE: nothing is left. MORE: records are left, and the budget is spent or others wait for this run. STOPPED: the
    worker stops before that. RETRY: the tenant is paused, or waits for a rate limit.
    """
    page = yield run.claim(run.most_records())
    if run.begun.died and page.records:
        yield AfterTheOthers()
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
            yield from deliver(run, page)
        # A sweep that an earlier run began did not see what came since, so another follows before this run is done.
        if page.finished and not page.resumed:
            return Ending(Outcome.DONE)
        if not run.ownership.owned:
            raise CursorLost
        if run.must_end or is_stopping():
            return Ending(Outcome.MORE if run.must_end else Outcome.STOPPED)
        page = run.cursors.read(run.key, run.most_records())
