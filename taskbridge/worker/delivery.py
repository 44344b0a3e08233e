"""The state of a run, and the delivery of one page: call the handler, and move the cursor past what it handled."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from taskbridge.common.run_key import RunKey
from taskbridge.declaring.batch import Batch, Record
from taskbridge.declaring.failures import Bisection
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
    Move,
    Page,
    Quarantined,
    Transaction,
)
from taskbridge.worker.handler import HandlerFailed, call, call_hooks, done_first, has_waited
from taskbridge.worker.history import row_after
from taskbridge.worker.middleware import Hook
from taskbridge.worker.traces import RunTrace

__all__ = ["LOOKS_EVERY", "SLICE", "Run", "RunResult", "charge", "deliver", "permitted", "try_alone"]

SLICE: Final = 0.05
"""How long a slot keeps taking further runs after its first, in seconds.

A waiting tenant is delayed by at most this plus one handler call.
"""
LOOKS_EVERY: Final = 0.02
"""How long the runs that a slot begins together take together, in seconds: then it looks for first events again."""
LONGEST_MS: Final = 2**31 - 1
PAID_AHEAD_MS: Final = 200
"""If a run must wait for a rate limit, how many milliseconds' worth of records it is charged for in advance."""


class RunResult(NamedTuple):
    """How a run ended. The gate, logs, traces and Celery's task read it.

    `outcome` None: another run has replaced this one, so there is nothing to settle. `error`: the error that the
    handler or a server raised. `made_way`: it ended because a first event waits for a slot. The other fields are those
    of `Settlement`.
    """

    outcome: Outcome | None
    retry_ms: int = 0
    blame: Blame = Blame.NOBODY
    owner: str = ""
    error: Exception | None = None
    all_wait: bool = False
    made_way: bool = False


@dataclass(slots=True)
class Run:
    """A run from begin to settle. `took` and `handled`: how many records it has taken and handled."""

    runtime: Runtime
    pipeline: Pipeline
    key: RunKey
    begun: Begun
    started: float
    ownership: Ownership
    began_together: int = 1
    """How many runs are in its group. If there are others, they wait for it, so it delivers one short batch."""
    took: int = 0
    handled: int = 0
    counted_death: bool = False
    """Whether it stored the death of the run before it."""
    rejected: int = 0
    """How many records were quarantined because the handler rejected them, or because they could not be decoded."""
    first_event_ms: int | None = None
    """How long the first event of its burst waited for the first batch, if this run delivered that batch."""
    reported: tuple[int, int] | None = None
    """`took` and `rejected` as stored in the run history; None: it has no row for this run."""
    trace: RunTrace | None = None
    """Its spans, if the program records traces."""
    result: RunResult | None = None
    """How it ended; None: it has not ended."""
    is_over: bool = False
    """Whether it is settled, or has nothing to settle."""

    @property
    def cursors(self) -> Cursors:
        """The cursors over the source of this pipeline."""
        return self.runtime.cursors_of(self.pipeline.name)

    @property
    def tenant(self) -> str:
        """The tenant whose records it takes."""
        return self.key.tenant

    @property
    def error(self) -> Exception | None:
        """What the handler or a server raised, if it ended with that."""
        return None if self.result is None else self.result.error

    @property
    def seconds_left(self) -> float:
        """What is left of the time budget."""
        return self.runtime.settings.run_budget - (time.monotonic() - self.started)

    @property
    def must_end(self) -> bool:
        """Whether it ends after this batch even if records are left.

        It does if other runs of its group wait for it, if it probes an open circuit, if its worker takes only first
        events, or if less than a tenth of its time budget is left, which is too little for another call.
        """
        has_time = self.seconds_left >= self.runtime.settings.run_budget / 10
        is_limited = self.began_together > 1 or self.begun.probe is not None or self.runtime.takes_first_events_only
        return is_limited or not has_time

    @property
    def most_records(self) -> int:
        """How many records fit into the pipeline's latency budget, according to the handler's last calls.

        With a delay since the last run, all records that waited belong to the same run, so they stay together.
        """
        if self.pipeline.criteria:
            return self.pipeline.batch_size
        latency, runtime = self.pipeline.latency_budget, self.runtime
        if self.began_together > 1:
            latency = min(latency, LOOKS_EVERY / self.began_together)
        most = runtime.paces[self.pipeline.name].most_records(latency, runtime.settings.run_budget, self.tenant)
        return min(self.pipeline.batch_size, most)

    @property
    def claim(self) -> Claim:
        """Its claim of the cursor, which makes it the owner and reads the first batch."""
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

    def count(self, move: Move, *, first_success: bool) -> None:
        """Count a page that the cursor has moved past.

        `first_success`: the pipeline failed before, so a success must be stored if the page has handled records.
        """
        records = len(move.page.records)
        handled = records - move.quarantined
        if first_success and handled:
            self.cursors.note_success(self.key)
        self.took += records
        self.handled += handled
        self.rejected += move.quarantined
        if move.row is not None:
            self.reported = self.took, self.rejected

    def settlement(self, result: RunResult, outcome: Outcome) -> tuple[RunKey, Settlement, Spacing, int]:
        """Return the arguments with which the gate settles the run."""
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
        """End its heartbeat and its trace."""
        self.is_over = True
        self.runtime.heartbeat.discard(self.ownership)
        if self.trace is not None:
            self.trace.end(self.result)


def permitted(run: Run, page: Page) -> tuple[Page, int]:
    """Return the part of the page that the rate limits allow now, or the milliseconds to wait if they allow nothing."""
    limits = [limit.records for limit in (run.pipeline.rate_limit, run.pipeline.tenant_rate_limit) if limit.records]
    wanted = len(page.records)
    if not wanted or not run.pipeline.is_limited:
        return page, 0
    allowed, wait_ms = _permit(run, wanted, min((limit.within(PAID_AHEAD_MS) for limit in limits), default=wanted))
    if allowed == 0:
        return page, max(1, wait_ms)
    return page.first(allowed), 0


def charge(run: Run) -> None:
    """Charge the rate limits for a call with one record that does not wait for them; later calls wait longer."""
    if run.pipeline.is_limited:
        _permit(run, 1, 0)


def _permit(run: Run, wanted: int, at_least: int) -> tuple[int, int]:
    whole, each = run.pipeline.rate_limit, run.pipeline.tenant_rate_limit
    return run.runtime.gate.permit(run.key, wanted, at_least, whole, each)


def deliver(run: Run, page: Page, later: list[Move] | None = None) -> None:
    """Call the handler with the page's records, and commit what it wrote together with the advance of the cursor.

    Records that cannot be decoded are quarantined instead of delivered. If the handler raises, the cursor moves past
    the leading records that it had marked as handled. A page without anything to move past is not delivered.

    `later`: takes the advance if nothing else has to be committed, so that the caller can commit those of several runs
    together.

    Raises:
        HandlerFailed: the handler raised, or what it wrote through the batch's connection cannot be committed.
        CursorLost: another run owns the cursor.
    """
    if not page.moves_cursor:
        return
    hooks: list[Hook] = []
    first_success = False
    _note_taken(run, page)
    with run.cursors.transaction(run.key) as transaction:
        batch = _batch(run, page.decoded, transaction)
        failed = call(run, page, batch, transaction, hooks) if page.decoded else None
        try:
            move = _move(run, page, batch, transaction, failed)
            if move is not None:
                if later is not None and not (failed or transaction.used or move.quarantine or hooks):
                    later.append(move)
                    return
                first_success = transaction.advance(move)
        except Exception as error:
            if (cause := _cause(page, transaction, failed, error)) is error:
                raise
            raise cause from error
    if move is not None:
        run.count(move, first_success=first_success)
        if failed is not None:
            failed.progressed, failed.page = True, page.after(len(move.page.records), _bisection_after(run, move.page))
        if failed is None or failed.returned:
            call_hooks(run, hooks)
    if failed is None:
        return
    try:
        raise failed.to_raise
    finally:
        # The error's traceback refers to this frame: a cycle that would keep the page until the next collection.
        del failed


def _move(run: Run, page: Page, batch: Batch, transaction: Transaction, failed: HandlerFailed | None) -> Move | None:
    """Return the advance of the cursor past what was handled; None: nothing was.

    Raises:
        HandlerMistake: the handler used the batch's connection and marked records out of order.
    """
    handled = page if failed is None else _first_handled(page, batch, transaction, failed)
    if handled is None:
        return None
    keys = {record.external_id for record in handled.records}
    rejected = {key: reason for key, reason in batch.rejected.items() if key in keys}
    reasons = {**handled.undecodable, **rejected}
    return transaction.move(
        handled,
        bisection=_bisection_after(run, handled),
        to_quarantine=Quarantined(reasons, "rejected") if reasons else None,
        # Only the first page of a run has waited for the event.
        first_event_ms=None if run.took else run.first_event_ms,
        row=None if failed else row_after(run, handled, len(reasons)),
    )


def _bisection_after(run: Run, handled: Page) -> Bisection:
    """Return the state of the search for a bad record once these records are handled."""
    size = len(handled.records)
    return handled.bisection.handled(size, run.pipeline.batch_size) if size else handled.bisection


def _cause(page: Page, transaction: Transaction, failed: HandlerFailed | None, error: Exception) -> BaseException:
    """Return the error of a batch that cannot be committed."""
    if failed is not None and failed.ends_process:
        return failed.error
    # What the handler wrote may violate a constraint at the commit, or its transaction may be aborted.
    is_handlers = transaction.used or isinstance(error, ComesAgain | HandlerMistake)
    if isinstance(error, CursorLost) or not is_handlers:
        return error
    return HandlerFailed(page, error, waited=has_waited(transaction, error))


def _first_handled(page: Page, batch: Batch, transaction: Transaction, failed: HandlerFailed) -> Page | None:
    """Return the leading records that a failed handler had handled; None: none are kept.

    What it wrote through the batch's connection cannot be attributed to single records, so if it used the connection,
    nothing is kept unless it returned.

    Raises:
        HandlerMistake: it used the connection and marked records out of order.
    """
    if transaction.used and not failed.returned:
        return None
    count = done_first(batch, page.records, page.undecodable, wrote=transaction.used)
    return page.first(count) if count else None


def try_alone(run: Run, page: Page, record: Record) -> bool:
    """Call the handler with one record of the page, to find out whether the records or the downstream are at fault.

    The cursor does not move, and what the handler wrote through the batch's connection is rolled back: the record is
    delivered again later. Returns whether it was handled; False: the handler rejected it, which does not tell whether
    the downstream works.

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


def _note_taken(run: Run, page: Page) -> None:
    """Note the records in the trace and, on the first page of a burst, how long its first event has waited."""
    if run.trace is not None:
        run.trace.take(page.records, page.traceparents)
    if run.begun.age_ms is not None and not run.took and page.records:
        # If all workers were down, an event may be older than the column can store.
        run.first_event_ms = min(LONGEST_MS, run.begun.age_ms + round((time.monotonic() - run.started) * 1000))


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
