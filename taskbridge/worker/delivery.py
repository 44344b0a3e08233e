"""A run's state, and one page of its records: the handler is called, and the cursor moves past what it handled."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from taskbridge.common.run_key import RunKey
from taskbridge.declaring.batch import Batch, Record
from taskbridge.declaring.pipeline import Pipeline
from taskbridge.declaring.policy import Spacing
from taskbridge.errors import HandlerMistake
from taskbridge.gate import Begun, Blame, Outcome, Settlement
from taskbridge.process.heartbeat import Ownership
from taskbridge.process.runtime import Runtime
from taskbridge.store import (
    Claim,
    ComesAgain,
    CursorLost,
    Cursors,
    HistoryRow,
    Move,
    Page,
    Quarantined,
    Transaction,
)
from taskbridge.worker.handler import HandlerFailed, call, call_hooks, done_first, has_waited
from taskbridge.worker.history import row_after
from taskbridge.worker.middleware import Hook
from taskbridge.worker.traces import RunTrace

__all__ = ["SLICE", "Run", "RunResult", "charge", "deliver", "permitted", "try_alone"]

SLICE: Final = 0.05
"""How long a slot keeps taking further runs after its first, in seconds.

A waiting tenant is delayed by at most this plus one handler call.
"""
LONGEST_MS: Final = 2**31 - 1
PAID_AHEAD_MS: Final = 200
"""A run that must wait for a rate limit pays for the records of so many milliseconds, and waits until they may go."""


class RunResult(NamedTuple):
    """How a run ended, whatever the handler or a server answered. The gate, logs, traces and Celery's task read it.

    `outcome` None: another run has replaced this one, so there is nothing to settle. `error`: what the handler or a
    server raised. The rest is as in `Settlement`.
    """

    outcome: Outcome | None
    retry_ms: int = 0
    blame: Blame = Blame.NOBODY
    owner: str = ""
    error: Exception | None = None
    all_wait: bool = False


@dataclass(slots=True)
class Run:
    """A run that has begun, until it is settled. `took`: how many records it took; `handled`: how many it handled."""

    runtime: Runtime
    pipeline: Pipeline
    key: RunKey
    begun: Begun
    started: float
    ownership: Ownership
    began_together: int = 1
    """How many runs are in its group. Where there are others, which wait for it, it delivers one short batch."""
    took: int = 0
    handled: int = 0
    counted_death: bool = False
    """Whether it stored the death of the run before it."""
    rejected: int = 0
    """How many records went to quarantine because the handler rejected them, or they could not be decoded."""
    first_event_ms: int | None = None
    """How long its burst's first event waited for the first batch, if this run delivered that."""
    reported: tuple[int, int] | None = None
    """`took` and `rejected` as the run history has them; None: it has no row of this run."""
    trace: RunTrace | None = None
    """Its spans, where the program makes any."""
    result: RunResult | None = None
    """How it ended; None: it has not."""
    is_over: bool = False
    """Whether it is settled, or has nothing to settle."""

    @property
    def cursors(self) -> Cursors:
        """The cursors over the source of this pipeline."""
        return self.runtime.cursors_of(self.pipeline.name)

    @property
    def tenant(self) -> str:
        """Whose records it takes."""
        return self.key.tenant

    @property
    def seconds_left(self) -> float:
        """What is left of the time budget."""
        return self.runtime.settings.run_budget - (time.monotonic() - self.started)

    @property
    def must_end(self) -> bool:
        """Whether it ends after this batch although records are left.

        Others of its group wait for it, it probes an open circuit, its worker takes first events only, or less than a
        tenth of its time budget is left, which is too little for another call.
        """
        has_time = self.seconds_left >= self.runtime.settings.run_budget / 10
        is_limited = self.began_together > 1 or self.begun.probe is not None or self.runtime.takes_first_events_only
        return is_limited or not has_time

    @property
    def most_records(self) -> int:
        """How many records the latency budget of the pipeline allows, judging by the handler's last calls."""
        latency, runtime = self.pipeline.latency_budget, self.runtime
        if self.began_together > 1:
            latency = min(latency, SLICE / self.began_together)
        pace = runtime.paces[self.pipeline.name]
        return min(self.pipeline.batch_size, pace.most_records(latency, runtime.settings.run_budget))

    @property
    def claim(self) -> Claim:
        """What it asks of its cursor first: to be its owner, and a batch."""
        begun, probe = self.begun, self.begun.probe
        return Claim(
            self.key,
            self.most_records if probe is None else probe + 1,
            begun.events,
            begun.runs,
            begun.burst,
            bisecting=probe is None,
            died=begun.died is not None,
        )

    def count(self, page: Page, rejected: int = 0, *, first_success: bool, row: HistoryRow | None = None) -> None:
        """Count a page that the cursor has moved past; `first_success`: something of the pipeline failed before.

        `row`: what the run history says of it, if it does.
        """
        handled = len(page.records) - rejected
        if first_success and handled:
            self.cursors.note_success(self.key)
        self.took += len(page.records)
        self.handled += handled
        self.rejected += rejected
        if row is not None:
            self.reported = self.took, self.rejected

    def settlement(self, result: RunResult, outcome: Outcome) -> tuple[RunKey, Settlement, Spacing, int]:
        """Return what the gate is told at the run's end."""
        settlement = Settlement(
            outcome,
            self.took,
            self.handled,
            failed=result.error is not None and outcome is not Outcome.STOPPED,
            blame=result.blame,
            retry_ms=result.retry_ms,
            owner=result.owner,
            all_wait=result.all_wait,
            counted=self.counted_death,
        )
        return self.key, settlement, self.pipeline.policy.spacing, self.pipeline.max_runs

    def close(self) -> None:
        """Let its heartbeat and its trace end."""
        self.is_over = True
        self.runtime.heartbeat.discard(self.ownership)
        if self.trace is not None:
            self.trace.end(self.result)


def permitted(run: Run, page: Page) -> tuple[Page, int]:
    """Return as much of the page as the rate limits let through, or the milliseconds to wait where that is nothing."""
    limits = [limit.records for limit in (run.pipeline.rate_limit, run.pipeline.tenant_rate_limit) if limit.records]
    wanted = len(page.records)
    if not wanted or not run.pipeline.is_limited:
        return page, 0
    allowed, wait_ms = _permit(run, wanted, min((limit.within(PAID_AHEAD_MS) for limit in limits), default=wanted))
    if allowed == 0:
        return page, max(1, wait_ms)
    return page.first(allowed), 0


def charge(run: Run) -> None:
    """Charge the rate limits for a call with one record that is made in any case; later calls wait longer."""
    if run.pipeline.is_limited:
        _permit(run, 1, 0)


def _permit(run: Run, wanted: int, at_least: int) -> tuple[int, int]:
    whole, each = run.pipeline.rate_limit, run.pipeline.tenant_rate_limit
    return run.runtime.gate.permit(run.key, wanted, at_least, whole, each)


def deliver(run: Run, page: Page) -> Move | None:
    """Call the handler with the page's records, and let what it wrote commit with the advance of the cursor.

    Returns the advance where nothing else has to commit with it: it is one statement, and those of several runs are one
    commit. None: the cursor has moved, or there is nothing to move past.

    Records that cannot be decoded are not delivered: they go to quarantine. Where the handler raises, the cursor moves
    past the first records that it said it had handled.

    Raises:
        HandlerFailed: the handler raised, or what it wrote through the batch's connection cannot be committed.
        CursorLost: the cursor is another run's.
    """
    if not page.moves_cursor:
        return None
    committing = _Committing(run, page)
    if run.trace is not None:
        run.trace.take(page.records, page.traceparents)
    with run.cursors.transaction(run.key) as transaction:
        batch = _batch(run, page.decoded, transaction)
        failed = call(run, page, batch, transaction, committing.hooks) if page.decoded else None
        try:
            move = committing.commit(transaction, batch, failed)
        except Exception as error:
            raise _cause(page, transaction, failed, error) from error
    committing.count(failed)
    if failed is None:
        return move
    try:
        raise failed.to_raise
    finally:
        # The error has this frame, which would keep the error and its page until the next collection of garbage.
        del failed


def _cause(page: Page, transaction: Transaction, failed: HandlerFailed | None, error: Exception) -> BaseException:
    """Return what a batch that cannot be committed fails with."""
    if failed is not None and failed.ends_process:
        return failed.error
    # What the handler wrote may violate a constraint at the commit, or its transaction may be aborted.
    is_handlers = transaction.used or isinstance(error, ComesAgain | HandlerMistake)
    if isinstance(error, CursorLost) or not is_handlers:
        return error
    return HandlerFailed(page, error, waited=has_waited(transaction, error))


class _Committing:
    """The commit of one page, or of its first records where the handler did not handle all."""

    def __init__(self, run: Run, page: Page) -> None:
        self.hooks: list[Hook] = []
        self._run = run
        self._page = page
        self._first_event_ms = _first_event_ms(run, page)
        run.first_event_ms = run.first_event_ms or self._first_event_ms
        self._committed: Page | None = None
        self._rejected = 0
        self._first_success = False
        self._row: HistoryRow | None = None

    def commit(self, transaction: Transaction, batch: Batch, failed: HandlerFailed | None) -> Move | None:
        """Move the cursor past what was handled, with what the handler wrote; or return how it is to move."""
        page = self._page if failed is None else _first_handled(self._page, batch, transaction, failed)
        if page is None:
            return None
        size = len(page.records)
        bisection = page.bisection.handled(size, self._run.pipeline.batch_size) if size else page.bisection
        keys = {record.external_id for record in page.records}
        rejected = {key: reason for key, reason in batch.rejected.items() if key in keys}
        reasons = {**page.undecodable, **rejected}
        move = transaction.move(
            page,
            bisection=bisection,
            to_quarantine=Quarantined(reasons, "rejected") if reasons else None,
            first_event_ms=self._first_event_ms,
            row=None if failed else row_after(self._run, page, len(reasons)),
        )
        if not (failed or transaction.used or reasons or page.leaving or self.hooks):
            return move
        self._first_success, self._row = transaction.advance(move), move.row
        self._committed, self._rejected = page, len(reasons)
        if failed is not None:
            failed.progressed, failed.page = True, self._page.after(size, bisection)
        return None

    def count(self, failed: HandlerFailed | None) -> None:
        """Count what was committed, and call the hooks for after the commit."""
        if self._committed is None:
            return
        self._run.count(self._committed, self._rejected, first_success=self._first_success, row=self._row)
        if failed is None or failed.returned:
            call_hooks(self._run, self.hooks)


def _first_handled(page: Page, batch: Batch, transaction: Transaction, failed: HandlerFailed) -> Page | None:
    """Return the first records that a handler which failed is done with; None: nothing is kept.

    What it wrote through the batch's connection cannot be told apart by records, so then none is, unless it returned.

    Raises:
        HandlerMistake: it wrote for records that it handled out of their order.
    """
    if transaction.used and not failed.returned:
        return None
    count = done_first(batch, page.records, page.undecodable, wrote=transaction.used)
    return page.first(count) if count else None


def try_alone(run: Run, page: Page, record: Record) -> bool:
    """Call the handler with one record of the page, to see whether the records or the downstream are at fault.

    The cursor stays, and what the handler wrote through the batch's connection is rolled back: the record is delivered
    again later. Returns whether it was handled; False: the handler rejected it, which says nothing of the downstream.

    Raises:
        HandlerFailed: the handler raised.
    """
    if run.trace is not None:
        run.trace.take((record,), page.traceparents)
    with run.cursors.transaction(run.key) as transaction:
        batch = _batch(run, (record,), transaction)
        failed = call(run, page, batch, transaction, [])
    if failed is not None:
        raise failed.to_raise
    if not batch.rejected:
        run.cursors.note_success(run.key, trial=True)
    return not batch.rejected


def _first_event_ms(run: Run, page: Page) -> int | None:
    """Return how long a burst's first event took; None: this is not the first page, or a run before acted on it."""
    if run.begun.age_ms is None or run.took or not page.records:
        return None
    # An event may be older than the column holds, where all workers stood still.
    return min(LONGEST_MS, run.begun.age_ms + round((time.monotonic() - run.started) * 1000))


def _batch(run: Run, records: Sequence[Record], transaction: Transaction) -> Batch:
    limit = run.pipeline.soft_time_limit
    return Batch(
        *run.key,
        records,
        connect=transaction.connect,
        open_session=transaction.open_session,
        owned=lambda: run.ownership.owned,
        until=math.inf if limit is None else time.monotonic() + limit,
    )
