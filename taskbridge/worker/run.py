"""One run of a tenant, from begin to settle.

At most one run of a tenant is between begin and settle with the current token (the gate ensures that), and only the
token that owns the cursor advances it (Postgres ensures that). A run that finds that it was replaced stops without
settling; its successor owns the tenant.

`do_run` performs a whole run; `result_of` decides how it ends after an error. `group.py` performs several short runs
together.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final

from taskbridge import store
from taskbridge.common.run_key import RunKey
from taskbridge.common.texts import log_error
from taskbridge.gate import Answer, Begun, Outcome
from taskbridge.process.runtime import Runtime
from taskbridge.process.shutdown import is_stopping, waits_for_stop
from taskbridge.store import CursorLost, Page, StaleToken, Unread
from taskbridge.worker import failures
from taskbridge.worker.delivery import Run, RunResult, deliver, permitted
from taskbridge.worker.handler import HandlerFailed
from taskbridge.worker.history import last_row
from taskbridge.worker.traces import trace_of

__all__ = [
    "STOPPED",
    "admit",
    "begin",
    "claim",
    "do_run",
    "handed_over",
    "read_on",
    "result_after",
    "result_of",
    "settle",
]

log = logging.getLogger(__name__)

LOST: Final = RunResult(None)
DONE: Final = RunResult(Outcome.DONE)
MORE: Final = RunResult(Outcome.MORE)
MADE_WAY: Final = RunResult(Outcome.MORE, made_way=True)
STOPPED: Final = RunResult(Outcome.STOPPED)


def do_run(runtime: Runtime, key: RunKey, run: Run | None = None) -> Run | None:
    """Perform one run of a tenant and return it; None: it did not begin.

    If `run` is given, it has already begun, as part of a group that it has since left.
    """
    if run is None and (run := begin(runtime, [key])[0]) is None:
        return None
    with handed_over(run):
        try:
            page = claim(run)
            while isinstance(page, Page):
                deliver(run, page)
                page = read_on(run, page)
            run.result = page
        except Exception as error:
            run.result = result_of(run, error)
        settle(runtime, [run])
    return run


def result_of(run: Run, error: Exception) -> RunResult:
    """Decide how a run ends after an error, and store what the next run needs to know."""
    try:
        match error:
            case HandlerFailed():
                return failures.after_failure(run, error)
            case Unread():
                return failures.after_unread(run, error)
            case CursorLost():
                return LOST
            case StaleToken():
                return RunResult(Outcome.STALE, owner=error.owner)
            case _:
                return failures.after_lost_server(run, error)
    except Exception as second:
        # The failure could not be stored, or another run owns the cursor by now.
        return result_of(run, second)


def begin(runtime: Runtime, keys: Sequence[RunKey]) -> list[Run | None]:
    """Begin a run of each tenant, in one round trip; None for each that could not begin."""
    # Ownership is counted from before the call, because the process may freeze before it receives the reply.
    asked = time.monotonic()
    pipelines = [runtime.pipelines[key.pipeline] for key in keys]
    limits = [(key, pipeline.max_runs) for key, pipeline in zip(keys, pipelines, strict=True)]
    answers = runtime.gate.begin_many(limits, runtime.worker)
    together = sum(isinstance(answer, Begun) for answer in answers)
    runs: list[Run | None] = []
    for key, pipeline, answer in zip(keys, pipelines, answers, strict=True):
        if isinstance(answer, Answer):
            what = "it is in the wait queue" if answer is Answer.POSTPONED else "late or doubled message, nothing to do"
            log.info("run of %s for tenant %r: %s", key.pipeline, key.tenant, what)
            runs.append(None)
            continue
        ownership = runtime.heartbeat.add(partial(runtime.gate.beat, key), asked)
        run = Run(runtime, pipeline, key, answer, time.monotonic(), ownership, together)
        run.trace = trace_of(run)
        runs.append(run)
    return runs


def claim(run: Run) -> Page | RunResult:
    """Make the run the owner of its cursor, and read its first page.

    If the previous run died, that counts as a failure of this page.

    Raises:
        StaleToken: a higher token owns the cursor.
        Unread: the page cannot be read.
    """
    run.runtime.register(run.pipeline)
    page = run.cursors.claim(run.claim)
    if run.begun.probe is not None:
        return failures.probe(run, page)
    if run.begun.died and page.records:
        if (result := failures.after_death(run, page)) is not None:
            return result
        # Read it again with the documents: they may be the reason why that run died.
        page = run.cursors.read(run.key, run.most_records)
    return admit(run, page)


def admit(run: Run, page: Page) -> Page | RunResult:
    """Return the part of a page that may be delivered now, or how the run ends if the tenant is paused or must wait."""
    if page.paused:
        return failures.PAUSED
    page, wait_ms = permitted(run, page)
    return RunResult(Outcome.RETRY, retry_ms=wait_ms) if wait_ms else page


def read_on(run: Run, page: Page) -> Page | RunResult:
    """Return the next page, or how the run ends.

    Raises:
        CursorLost: the run may have been replaced.
        Unread: the page cannot be read.
    """
    result = result_after(run, page)
    return result or admit(run, run.cursors.read(run.key, run.most_records))


def result_after(run: Run, page: Page) -> RunResult | None:
    """Return how a run ends after its cursor has moved past this page; None: it continues.

    DONE: no records are left. MORE: records are left, but the budget is spent, or others wait for this run or its slot.
    STOPPED: records are left, but the worker is shutting down.

    Raises:
        CursorLost: the run may have been replaced.
    """
    # A sweep that an earlier run began does not include later records, so this run needs another sweep.
    if page.finished and not page.resumed:
        return DONE
    if not run.ownership.owned:
        raise CursorLost
    if run.must_end:
        return MORE
    if run.runtime.takes_first_events and run.runtime.gate.has_waiting_first_event():
        return MADE_WAY
    return STOPPED if is_stopping() else None


def settle(runtime: Runtime, runs: Sequence[Run], *, reports: bool = True) -> None:
    """Report to the gate how runs ended, in one round trip; then write the history rows that are still missing.

    If that fails, the error becomes the error of each result that has none.
    """
    ended = []
    for run in runs:
        if run.result is None or run.result.outcome is None:
            log.warning("run of %s for tenant %r: replaced by another run, stops", run.pipeline.name, run.tenant)
        else:
            ended.append(run.settlement(run.result, run.result.outcome))
    try:
        if ended:
            runtime.gate.settle_many(ended, most_in_flight=runtime.most_in_flight)
        rows = [row for run in runs if reports and run.result and (row := last_row(run, run.result))]
        if rows:
            store.write_runs(runtime.engine, rows)
    except Exception as error:
        for run in runs:
            result = run.result or LOST
            if result.error is None:
                run.result = result._replace(error=error)
            else:
                # Celery is told why the handler failed.
                log_error(log, error, "run of %s for tenant %r could not be settled", run.pipeline.name, run.tenant)
    for run in runs:
        run.close()


@contextmanager
def handed_over(run: Run) -> Iterator[None]:
    """Return the run to the queue if the process is shut down in the block, so that another worker takes it at once.

    If the process ends for another reason, such as a hard time limit, this batch may be the cause. Then the run is not
    settled: after its deadline, its successor counts the attempt as a failure.
    """
    try:
        yield
    except BaseException as ended:
        run.result = None
        if isinstance(ended, KeyboardInterrupt) or (not isinstance(ended, Exception) and waits_for_stop()):
            run.result = STOPPED
            # A process that is shutting down does not wait for the history.
            settle(run.runtime, [run], reports=False)
        else:
            run.close()
        raise
