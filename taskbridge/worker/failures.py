"""What happens when a batch fails: back-off, the search for a bad record, quarantine, and the circuit's probes.

A record goes to quarantine if it has failed `max_attempts` times in a batch of its own, and another record of its
pipeline has been handled since the last of these failures. If none has, other records of its tenant are tried. If those
fail too, the downstream seems to be at fault: the tenant waits, nothing is quarantined, and if a second tenant has the
same result the circuit opens. If a tenant has no other record, or all others are rejected, two such records may go to
quarantine in a row.

An error that blames the downstream needs stronger evidence: another record of the same tenant is handled and then this
one fails again; or, if no other is handled, it fails four times as often while other tenants' records are handled. That
many failures are also enough if there is no other record and the handler's own session with Postgres is what fails.
Such failures do not count for a record that then fails with another error.

The death of a run's process counts as a failure of the batch that the next run reads.
"""

from __future__ import annotations

import logging
import math
from enum import Enum, auto
from typing import Final, NamedTuple

from taskbridge.common.texts import error_text
from taskbridge.declaring.batch import Record, RetryAfter
from taskbridge.declaring.failures import LONGEST_OUTAGE_BACKOFF, Bisection, asked_to_wait, backoff, is_downstream
from taskbridge.declaring.pipeline import Pipeline
from taskbridge.errors import HandlerMistake
from taskbridge.gate import Blame, Outcome
from taskbridge.store import ComesAgain, Evidence, Page, Quarantined, Unread, is_without_session
from taskbridge.worker.delivery import Run, RunResult, charge, permitted, try_alone
from taskbridge.worker.handler import HandlerFailed
from taskbridge.worker.history import fail, row_of

__all__ = ["PAUSED", "after_death", "after_failure", "after_lost_server", "after_unread", "probe"]

log = logging.getLogger(__name__)

PAUSED: Final = RunResult(Outcome.PAUSED)
LEAST_WAIT_MS: Final = 200
"""The minimum wait if a handler asks to wait; it may ask for 0, for example with a date in the past."""
MOST_IN_A_ROW: Final = 2
LEAST_DEATHS: Final = 5
"""The minimum number of deaths with one record alone before it may go to quarantine: a process may also be killed."""
DOWNSTREAM_FACTOR: Final = 4
LOOKS_AHEAD: Final = 256
"""At least this many records of a tenant are read to find one that can be handled."""
DIED: Final = (
    "the previous run did not end: its process died (for example by a hard time limit or for lack of memory), its "
    "handler ignored its time limit or blocked the interpreter for longer than the runner TTL, or Redis could not be "
    "reached for that long"
)


def after_failure(run: Run, failed: HandlerFailed) -> RunResult:
    """Decide how the run ends after the handler's error, and store the failure.

    Raises:
        CursorLost: the cursor is another run's.
    """
    error, page = failed.error, failed.page
    if (retry_after := asked_to_wait(error)) is not None:
        # A handler that marks its progress needs no smaller batches; ComesAgain says nothing about their size.
        keeps = failed.progressed or isinstance(error, ComesAgain)
        bisection = page.bisection if keeps else page.bisection.told_to_wait(len(page.records))
        if bisection != page.bisection:
            run.cursors.limit(run.key, bisection)
        return _wait(run, retry_after)
    if not page.records:
        return after_lost_server(run, failed.exception)
    text = error_text(error)
    # The server does not answer, another session holds a lock, or the record's own statement does not end.
    downstream = failed.waited or is_downstream(error, run.pipeline.downstream_errors)
    blame = Blame.DOWNSTREAM if downstream else Blame.RECORD
    if run.begun.probe is not None:
        fail(run, text)
        return RunResult(Outcome.RETRY, _milliseconds(run.begun.failures), blame, error=failed.exception)

    bisection = page.bisection.failed(len(page.records), page.records[0].revision, downstream=downstream)
    failure = _Failure(page, bisection, text, downstream=downstream, waited=failed.waited)
    result, _ = _judged(run, failure)
    if result is not None:
        return result
    if failure.is_enough(run.pipeline) and not downstream:
        blame = Blame.PIPELINE
    failures = max(bisection.tries - 1, run.begun.failures if downstream else 0)
    longest = LONGEST_OUTAGE_BACKOFF if blame is not Blame.RECORD else None
    return RunResult(Outcome.RETRY, _milliseconds(failures, longest), blame, error=failed.exception)


def after_death(run: Run, page: Page) -> RunResult | None:
    """Count the death of the previous run as a failure of `page`, before any of its documents is read again.

    Returns how this run ends; None: it continues at once, after the first failure in a row.

    Raises:
        CursorLost: the cursor is another run's.
    """
    bisection = page.bisection.failed(len(page.records), page.records[0].revision, died=True)
    text = _death(run)
    result, failures = _judged(run, _Failure(page, bisection, text, died=True))
    if result is None and failures > 1:
        wait_ms = _milliseconds(max(0, bisection.tries - 1))
        return RunResult(Outcome.RETRY, wait_ms, Blame.RECORD, error=HandlerMistake(text))
    return result


def _death(run: Run) -> str:
    """Log that the previous run did not end, and return the text to store.

    The text names the worker and not the run, so that deaths on one worker have the same text.
    """
    dead = run.begun.died
    text = f"{DIED}; it ran on worker {dead.worker}" if dead and dead.worker else DIED
    log.error("%s, tenant %r: %s (run %s)", run.pipeline.name, run.tenant, text, dead and dead.token)
    return text


def after_unread(run: Run, unread: Unread) -> RunResult:
    """Store that a batch could not be read, and make the next one smaller.

    A record whose document cannot be read alone goes to quarantine like one whose handler fails. If records cannot be
    read even without their documents, for example while the table is locked, no record is at fault.

    Raises:
        CursorLost: the cursor is another run's.
    """
    error, text = unread.error, f"the batch could not be read: {unread}"
    wait_ms = _milliseconds(run.begun.failures)
    try:
        page = run.cursors.read(run.key, unread.limit, bisecting=unread.bisecting, documents=False)
    except Unread:
        fail(run, text, unread=unread.limit)
        return RunResult(Outcome.RETRY, wait_ms, error=error)
    if page.paused:
        return PAUSED
    if run.begun.probe is not None or not page.records:
        fail(run, text)
        return RunResult(Outcome.RETRY, wait_ms, error=error)
    bisection = page.bisection.unread(len(page.records), page.records[0].revision)
    result, _ = _judged(run, _Failure(page, bisection, text))
    return result or RunResult(Outcome.RETRY, _milliseconds(max(0, bisection.tries - 1)), error=error)


def after_lost_server(run: Run, error: Exception) -> RunResult:
    """Store an error of Postgres or of this program, and wait for the back-off. No record is at fault.

    If this process only lacks a Postgres session, the tenant does not wait: another slot may have one.
    """
    if is_without_session(error):
        return RunResult(Outcome.STOPPED, error=error)
    try:
        fail(run, error_text(error))
    except Exception as second:
        # Postgres may be what failed. The tenant waits for its back-off anyway.
        log.warning("the failure of tenant %r could not be stored: %s", run.tenant, error_text(second))
    return RunResult(Outcome.RETRY, _milliseconds(run.begun.failures), error=error)


def probe(run: Run, page: Page) -> Page | RunResult:
    """Choose the record that a run tries while the circuit is open. If it is handled, the circuit closes.

    Returns the tenant's first record, to be delivered as usual. If the first records may be at fault, a later record is
    tried here instead, and the cursor does not move past it.

    Raises:
        HandlerFailed: the handler raised.
        CursorLost: the cursor is another run's.
    """
    if page.paused:
        return PAUSED
    failed = RunResult(Outcome.RETRY, _milliseconds(run.begun.failures), Blame.RECORD)
    if run.begun.died and page.records:
        # It is unknown which record the previous run tried, so the next probe tries another.
        text = _death(run)
        fail(run, text, died=True)
        run.counted_death = True
        return failed._replace(error=HandlerMistake(text))
    _, wait_ms = permitted(run, page.first(1))
    if wait_ms:
        return RunResult(Outcome.RETRY, retry_ms=wait_ms)
    others = [record for record in page.records[1:] if record.external_id not in page.undecodable]
    if not (run.begun.probe and others):
        return page.first(1)
    if not try_alone(run, page, others[-1]):
        # A rejection says nothing about the downstream, so the next probe tries another.
        return failed
    run.handled = 1
    return RunResult(Outcome.MORE)


class _Failure(NamedTuple):
    """A page that failed, what the search for a bad record has found by it, and the error's text.

    `died`: the process of the previous run died. `downstream`: the error blames the downstream. `waited`: Postgres did
    not answer the handler.
    """

    page: Page
    bisection: Bisection
    text: str
    died: bool = False
    downstream: bool = False
    waited: bool = False

    def is_enough(self, pipeline: Pipeline) -> bool:
        """Whether a record has failed alone often enough to be at fault."""
        bisection, most = self.bisection, pipeline.max_attempts
        if self.died:
            # Only deaths count, not errors: a kill from outside must not complete `max_attempts`.
            return bisection.is_alone and bisection.deaths >= max(most, LEAST_DEATHS)
        # Outages count only if this is another one.
        counted = bisection.attempts - (0 if self.downstream else bisection.outages)
        return bisection.is_alone and counted >= most


def _judged(run: Run, failure: _Failure) -> tuple[RunResult | None, int]:
    """Store a failure and, if a record has failed alone often enough, decide who is at fault.

    Returns how the run ends, if that is decided, and the number of failures in a row.

    Raises:
        CursorLost: the cursor is another run's.
    """
    evidence = run.cursors.evidence(run.key) if failure.is_enough(run.pipeline) else None
    # Stored before another record is tried: that one may end the process, and the search must not start over then.
    failures = fail(run, failure.text, failure.bisection, died=failure.died)
    run.counted_death = run.counted_death or failure.died
    if evidence is None:
        return None, failures
    try:
        if not _is_the_records_fault(run, failure, evidence):
            return None, failures
    except RetryAfter as retry_after:
        return _wait(run, retry_after), failures
    _quarantine(run, failure)
    return RunResult(Outcome.MORE), failures


def _is_the_records_fault(run: Run, failure: _Failure, evidence: Evidence) -> bool:
    """Whether other records of the pipeline are handled while this one fails.

    Raises:
        RetryAfter: the handler raised it when another record was tried.
    """
    (record,), bisection, downstream = failure.page.records, failure.bisection, failure.downstream
    often = not downstream or bisection.attempts >= run.pipeline.max_attempts * DOWNSTREAM_FACTOR
    # At its first failure alone, records handled before say nothing about it.
    if evidence.others_succeed and bisection.tries > 1 and often:
        return True
    try:
        ahead = run.cursors.read(run.key, max(run.pipeline.batch_size, LOOKS_AHEAD), bisecting=False, documents=False)
    except Unread:
        return False
    # A record taken out of quarantine in the meantime may come before this one.
    others = [other for other in ahead.records if other.external_id != record.external_id]
    failed = 0
    for at in _order_of_trials(len(others), bisection.tries - run.pipeline.max_attempts):
        trial = _try(run, ahead, others[at])
        if trial is Trial.HANDLED:
            # The downstream may have recovered in between.
            return not downstream or _try(run, failure.page, record) is Trial.FAILED
        failed += trial is not Trial.SILENT
        if failed >= len(others).bit_length() or run.seconds_left <= 0:
            return False
    if failed or evidence.in_a_row >= MOST_IN_A_ROW:
        return False
    # Each time Postgres answered this run but not the handler, so it is the record's own statement that does not end.
    return not downstream or (failure.waited and often)


def _order_of_trials(count: int, tries: int) -> list[int]:
    """Return the positions of `count` records in the order in which to try them.

    First in steps that double, from a start that moves with `tries`; then the others.
    """
    steps = [(tries + 2**exponent - 1) % count for exponent in range(count.bit_length())]
    return list(dict.fromkeys([*steps, *range(count)]))


class Trial(Enum):
    """The result of trying a record to see whether another one is at fault."""

    HANDLED = auto()
    FAILED = auto()
    UNREAD = auto()
    SILENT = auto()
    """It was rejected, is gone, or cannot be decoded, which says nothing about the downstream."""


def _try(run: Run, page: Page, record: Record) -> Trial:
    try:
        # One document at a time: together they could fill the memory.
        loaded = run.cursors.load(record)
        if loaded is None:
            return Trial.SILENT
        # It does not wait for rate limits: the run after the wait would begin with its own record and never get here.
        charge(run)
        return Trial.HANDLED if try_alone(run, page, loaded) else Trial.SILENT
    except Unread:
        return Trial.UNREAD
    except HandlerFailed as failed:
        if (retry_after := asked_to_wait(failed.error)) is not None:
            raise retry_after from None
        return Trial.FAILED


def _wait(run: Run, retry_after: RetryAfter) -> RunResult:
    """Return the result of a run whose handler asked to wait."""
    log.info("run of %s for tenant %r: the handler asks to %s", run.pipeline.name, run.tenant, retry_after)
    wait_ms = max(LEAST_WAIT_MS, math.ceil(retry_after.seconds * 1000))
    return RunResult(Outcome.RETRY, retry_ms=wait_ms, all_wait=retry_after.scope == "pipeline")


def _quarantine(run: Run, failure: _Failure) -> None:
    page, tries, (record,) = failure.page, failure.bisection.tries, failure.page.records
    with run.cursors.transaction(run.key) as transaction:
        move = transaction.move(
            page,
            bisection=failure.bisection.handled(1, run.pipeline.batch_size),
            to_quarantine=Quarantined({record.external_id: failure.text}, "failed", tries),
            row=row_of(run, "handled", records=1, sweeps=page.sweeps + 1),
        )
        transaction.advance(move)
    log.error(
        "%s: record %r of tenant %r goes to quarantine after %d attempts alone: %s",
        run.pipeline.name,
        record.external_id,
        run.tenant,
        tries,
        failure.text,
    )


def _milliseconds(failures: int, longest: float | None = None) -> int:
    return round(backoff(failures, longest) * 1000)
