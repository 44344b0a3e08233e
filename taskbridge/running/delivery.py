"""One batch: it is delivered and the cursor advances past it, in one transaction if the handler wants one."""

from __future__ import annotations

import inspect
import logging
import math
import time
from collections.abc import AsyncIterator, Container, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from contextvars import copy_context
from dataclasses import dataclass
from decimal import localcontext
from functools import partial
from itertools import takewhile
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

import psycopg
from celery.exceptions import SoftTimeLimitExceeded

from taskbridge.common.run_key import RunKey
from taskbridge.common.texts import error_text, log_error
from taskbridge.declaring.batch import Batch, Record, RetryAfter
from taskbridge.declaring.failures import is_caused_by
from taskbridge.declaring.pipeline import Pipeline
from taskbridge.declaring.policy import Spacing
from taskbridge.errors import HandlerMistake
from taskbridge.gate import Begun, Blame, Outcome, Settlement
from taskbridge.process.event_loop import NotBegun
from taskbridge.process.heartbeat import Ownership
from taskbridge.process.runtime import Runtime
from taskbridge.process.shutdown import ends_process
from taskbridge.process.time_limit import disarm, longest_call, soft_time_limit
from taskbridge.running.around import Hook, around
from taskbridge.running.history import row_after
from taskbridge.running.traces import RunTrace
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

__all__ = [
    "SLICE",
    "Advance",
    "AfterTheOthers",
    "Ending",
    "GivenBack",
    "HandlerFailed",
    "Run",
    "Settle",
    "Steps",
    "charge",
    "check_returned",
    "deliver",
    "done_first",
    "permitted",
    "try_alone",
]

log = logging.getLogger(__name__)

T = TypeVar("T")

SLICE: Final = 0.05
"""Seconds from the start of a message's run in which its slot takes more runs: others wait so long, and one call."""
OUT_OF_ORDER: Final = (
    "the handler wrote through the batch, returned RetryAfter, and marked records after one that it did not mark: "
    "handle them in the order of the batch, or raise RetryAfter, which rolls back what it wrote"
)
LONGEST_MS: Final = 2**31 - 1
PAID_AHEAD_MS: Final = 200
"""A run that must wait for a rate limit pays for the records of so many milliseconds, and waits until they may go."""


class Advance(NamedTuple):
    """What a run asks for when its handler is done: that its cursor moves."""

    move: Move


class AfterTheOthers(NamedTuple):
    """What a run asks for before it does what may take long: that those that began with it are done first."""


class GivenBack(Exception):
    """The run shall end, and another slot takes its tenant: others that began with it take too long."""


@dataclass(slots=True)
class Run:
    """A run that has begun. `took`: how many records it took so far; `handled`: how many of them were handled.

    `rejected`: how many of them went to quarantine because the handler rejected them, or they could not be decoded.
    """

    runtime: Runtime
    pipeline: Pipeline
    key: RunKey
    begun: Begun
    started: float
    ownership: Ownership
    began_together: int = 1
    """How many runs began together. Where there are others, which wait for it, it delivers one short batch."""
    took: int = 0
    handled: int = 0
    rejected: int = 0
    first_event_ms: int | None = None
    """How long its burst's first event waited for the first batch, if this run delivered that."""
    counted_death: bool = False
    """Whether it stored the death of the run before it."""
    reported: tuple[int, int] | None = None
    """`took` and `rejected` as the run history has them; None: it has no row of this run."""
    trace: RunTrace | None = None
    """Its spans, where the program makes any."""

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

    def claim(self, limit: int, *, bisecting: bool = True) -> Claim:
        """Return what it asks of its cursor first: to be its owner, and a batch."""
        self.runtime.know(self.pipeline)
        begun = self.begun
        return Claim(
            self.key,
            limit,
            begun.events,
            begun.runs,
            begun.burst,
            bisecting=bisecting,
            died=begun.died is not None,
        )

    def most_records(self) -> int:
        """How many records the handler can handle in what is left of the budget, judging by its last calls."""
        pace, budget, left = self.runtime.paces[self.pipeline.name], self.runtime.settings.run_budget, self.seconds_left
        if self.began_together > 1:
            budget = left = SLICE / self.began_together
        return min(self.pipeline.batch_size, pace.most_records(left, budget))

    def add(self, took: int, rejected: int, row: HistoryRow | None = None) -> None:
        """Count records past which the cursor has moved; `row`: what the run history has of them, if it has any."""
        self.took += took
        self.rejected += rejected
        self.handled += took - rejected
        if row is not None:
            self.reported = self.took, self.rejected

    def begins_with(self, page: Page, records: Sequence[Record]) -> None:
        """Note in the run's trace that it is about to deliver these of the page."""
        if self.trace is not None:
            self.trace.take(records, page.traceparents)

    def end(self, ending: Ending) -> tuple[RunKey, Settlement, Spacing, int]:
        """Return what the gate is told at the run's end."""
        if self.trace is not None:
            self.trace.ending = ending
        settlement = ending.settlement(self.took, self.handled, counted=self.counted_death)
        return self.key, settlement, self.pipeline.policy.spacing, self.pipeline.max_runs

    @property
    def must_end(self) -> bool:
        """Whether others wait, or less than a tenth of the time budget is left: too little for another call."""
        return self.began_together > 1 or self.seconds_left < self.runtime.settings.run_budget / 10


class Ending(NamedTuple):
    """How a run ends: what the gate is told, and the `error` that the handler or a server raised."""

    outcome: Outcome
    retry_ms: int = 0
    blame: Blame = Blame.NOBODY
    owner: str = ""
    error: Exception | None = None
    all_wait: bool = False

    def settlement(self, took: int, handled: int, *, counted: bool = False) -> Settlement:
        """What the gate is told by a run that took so many records and handled so many of them."""
        failed = self.error is not None and self.outcome is not Outcome.STOPPED
        said = (self.outcome, took, handled, failed, self.blame, self.retry_ms, self.owner)
        return Settlement(*said, all_wait=self.all_wait, counted=counted)


class Settle(NamedTuple):
    """What a run asks for at its end: that the gate is told."""

    run: Run
    ending: Ending


Steps: TypeAlias = "Generator[Claim | Advance | AfterTheOthers | Settle, Any, T]"
"""A run, or a part of one: it yields what it asks for and is told what came of it, and returns T at its end.

So what several runs ask for at the same time goes to the servers in one exchange.
"""


class HandlerFailed(Exception):
    """The handler raised `error` over `page`, or what it wrote cannot be committed; nothing of it took effect.

    `progressed`: the cursor has moved past what the handler said that it had handled, and `page` is the rest. `waited`:
    Postgres did not answer the batch's session, until a time limit or until the session was lost. `returned`: the
    handler returned what it asks for, so what it wrote takes effect with what it said that it had handled.
    """

    def __init__(
        self,
        page: Page,
        error: BaseException,
        *,
        progressed: bool = False,
        waited: bool = False,
        returned: bool = False,
    ) -> None:
        super().__init__(error)
        self.page = page
        self.error = error
        self.progressed = progressed
        self.waited = waited
        self.returned = returned

    @property
    def exception(self) -> Exception:
        """What the run raises: `error`, unless that would end more than the run, as SystemExit does."""
        if isinstance(self.error, Exception):
            return self.error
        mistake = HandlerMistake(
            f"the handler raised {error_text(self.error)}, which ends no worker: raise an Exception"
        )
        mistake.__cause__ = self.error
        return mistake


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


class HeldUp(ComesAgain):
    """The handler is a coroutine and could not begin, since that of another tenant blocks the loop of its process."""


def deliver(run: Run, page: Page) -> Steps[None]:
    """Call the handler with the page's records and advance the cursor past them.

    Where nothing else has to commit with the cursor, the advance is asked for: that of several runs is one commit.

    Records that cannot be decoded are not delivered: they go to quarantine. Where the handler raises, the cursor moves
    past the first records that it said it had handled.

    Raises:
        HandlerFailed: the handler raised, or what it wrote through the batch's connection cannot be committed.
        CursorLost: the cursor is another run's.
    """
    first_event_ms = None
    if run.begun.age_ms is not None and run.took == 0 and page.records:
        # An event may be older than the column holds, where all workers stood still.
        first_event_ms = min(LONGEST_MS, run.begun.age_ms + round((time.monotonic() - run.started) * 1000))
        run.first_event_ms = first_event_ms
    hooks: list[Hook] = []
    run.begins_with(page, page.records)
    with run.cursors.transaction(run.key) as transaction:
        bisection, reasons = page.bisection, dict(page.undecodable)
        if records := page.decoded:
            reasons |= _call_or_keep(run, page, _batch(run, records, transaction), transaction, hooks, first_event_ms)
        if page.records:
            bisection = bisection.handled(len(page.records), run.pipeline.batch_size)
        quarantined = Quarantined(reasons, "rejected") if reasons else None
        used = transaction.used
        move, asked, row = None, False, row_after(run, page, len(reasons))
        try:
            if used or reasons or page.leaving or hooks:
                asked = transaction.advance(
                    page, bisection=bisection, to_quarantine=quarantined, first_event_ms=first_event_ms, row=row
                )
            else:
                move = transaction.move(page, bisection=bisection, first_event_ms=first_event_ms, row=row)
        except CursorLost:
            raise
        except Exception as error:
            # What the handler wrote may violate a constraint at the commit, or its transaction may be aborted.
            if used or isinstance(error, ComesAgain):
                raise HandlerFailed(page, error, waited=_has_waited(transaction, error)) from error
            raise
    if move is not None:
        asked = yield Advance(move)
    handled = len(page.records) - len(reasons)
    if asked and handled:
        run.cursors.note_success(run.key)
    run.add(len(page.records), len(reasons), row)
    _after_commit(run, hooks)


def _after_commit(run: Run, hooks: Sequence[Hook]) -> None:
    """Call the hooks for after the commit. The batch stays handled, even if one fails."""
    if not hooks:
        return
    try:
        with _limited(run):
            for hook in hooks:
                try:
                    hook()
                except Exception as error:
                    log_error(log, error, "%s, tenant %r: a hook after the commit failed", *run.key[:2])
    except BaseException as error:
        if ends_process(error):
            raise
        log_error(log, error, "%s, tenant %r: a hook after the commit was given up", *run.key[:2])


def _call_or_keep(
    run: Run, page: Page, batch: Batch, transaction: Transaction, hooks: list[Hook], first_event_ms: int | None
) -> dict[str, str]:
    """Call the handler and return what it rejected; where it raises, keep what it was done with."""
    try:
        return _call(run, page, batch, transaction, hooks)
    except HandlerFailed as failed:
        try:
            rest = _keep_handled(run, page, batch, transaction, first_event_ms, returned=failed.returned)
        except ComesAgain as error:
            raise HandlerFailed(page, error) from failed.error
        if rest is not page and failed.returned:
            _after_commit(run, hooks)
        raise HandlerFailed(rest, failed.error, progressed=rest is not page, waited=failed.waited) from failed.error
    except BaseException:
        # The process was told to end, and its batch comes again elsewhere.
        with suppress(Exception):
            _keep_handled(run, page, batch, transaction, first_event_ms)
        raise


def _keep_handled(
    run: Run,
    page: Page,
    batch: Batch,
    transaction: Transaction,
    first_event_ms: int | None,
    *,
    returned: bool = False,
) -> Page:
    """Move the cursor past the first records that the handler is done with, although it raised; return the others.

    What it wrote through the batch's connection cannot be told apart by records, so then none is, unless it `returned`.

    Raises:
        HandlerFailed: it wrote for records that it handled out of their order.
        CursorLost: the cursor is another run's.
    """
    if transaction.used and not returned:
        return page
    try:
        count = done_first(batch, page.records, page.undecodable, wrote=transaction.used)
    except HandlerMistake as mistake:
        raise HandlerFailed(page, mistake) from None
    if not count:
        return page
    part = page.first(count)
    bisection = page.bisection.handled(count, run.pipeline.batch_size)
    rejected = {record.external_id for record in part.records} & batch.rejected.keys()
    reasons = {**part.undecodable, **{name: batch.rejected[name] for name in rejected}}
    quarantined = Quarantined(reasons, "rejected") if reasons else None
    asked = transaction.advance(part, bisection=bisection, to_quarantine=quarantined, first_event_ms=first_event_ms)
    handled = count - len(reasons)
    if asked and handled:
        run.cursors.note_success(run.key)
    run.add(count, len(reasons))
    return page.after(count, bisection)


def done_first(batch: Batch, records: Sequence[Record], undecodable: Container[str] = (), *, wrote: bool) -> int:
    """Return how many of the first records a handler was done with that did not handle all; 0: nothing is kept.

    Raises:
        HandlerMistake: it wrote for records that it handled out of their order.
    """
    done = batch.done
    count = sum(1 for _ in takewhile(lambda one: one.external_id in done or one.external_id in undecodable, records))
    marked = done - batch.rejected.keys()
    # A handler that marks nothing is all or nothing, its rejections too.
    if not count or not marked:
        return 0
    if wrote and not marked <= {record.external_id for record in records[:count]}:
        raise HandlerMistake(OUT_OF_ORDER)
    return count


def try_alone(run: Run, page: Page, record: Record) -> bool:
    """Call the handler with one record of the page, to see whether the records or the downstream are at fault.

    The cursor stays, and what the handler wrote through the batch's connection is rolled back: the record is delivered
    again later. Returns whether it was handled; False: the handler rejected it, which says nothing of the downstream.

    Raises:
        HandlerFailed: the handler raised.
    """
    run.begins_with(page, (record,))
    with run.cursors.transaction(run.key) as transaction:
        rejected = _call(run, page, _batch(run, (record,), transaction), transaction, [])
    if not rejected:
        run.cursors.note_success(run.key, trial=True)
    return not rejected


def _batch(run: Run, records: tuple[Record, ...], transaction: Transaction) -> Batch:
    limit = run.pipeline.soft_time_limit
    return Batch(
        *run.key,
        records,
        connect=transaction.connect,
        open_session=transaction.open_session,
        owned=lambda: run.ownership.owned,
        until=math.inf if limit is None else time.monotonic() + limit,
    )


def _call(run: Run, page: Page, batch: Batch, transaction: Transaction, hooks: list[Hook]) -> dict[str, str]:
    """Call the handler, note its pace, and return what it rejected; `hooks` gets the hooks for after the commit.

    What the handler sets in context variables, decimal's context among them, ends with the call and its hooks.
    """
    started, returned = time.monotonic(), None

    def after_commit(hook: Hook) -> None:
        hooks.append(partial(copy_context().run, hook))

    def call() -> Any:
        # The time limit is inside, so that its error cannot interrupt what is around the call.
        with localcontext(), _traced(run, batch), around(batch, after_commit), _limited(run):
            returned = _finish(run, run.pipeline.handler(batch), batch)
            transaction.flush()
        return returned

    try:
        returned = copy_context().run(call)
        if isinstance(returned, RetryAfter):
            raise returned
    except BaseException as error:
        if ends_process(error):
            raise
        run.runtime.paces[run.pipeline.name].note_failed(time.monotonic() - started)
        waited = _has_waited(transaction, error)
        raise HandlerFailed(page, error, waited=waited, returned=error is returned) from error
    finally:
        batch.end_call()
    run.runtime.paces[run.pipeline.name].note(len(batch), time.monotonic() - started)
    return dict(batch.rejected)


def _traced(run: Run, batch: Batch) -> AbstractContextManager[None]:
    return nullcontext() if run.trace is None else run.trace.call(len(batch))


def _has_waited(transaction: Transaction, error: BaseException) -> bool:
    # The session of a stream that is open has not answered either, whatever the handler raises.
    return transaction.waits and is_caused_by(error, (SoftTimeLimitExceeded, psycopg.OperationalError))


@contextmanager
def _limited(run: Run) -> Iterator[None]:
    """Let the block take as long as one call of the handler may."""
    limit = run.pipeline.soft_time_limit
    run.ownership.ends_at = math.inf if limit is None else time.monotonic() + longest_call(limit)
    try:
        with soft_time_limit(limit):
            yield
    finally:
        run.ownership.ends_at = math.inf


def _finish(run: Run, returned: Any, batch: Batch) -> Any:
    """Run to its end what the handler returned, if that is a coroutine or another awaitable; return what that does."""
    if inspect.isawaitable(returned):
        limit = None if math.isinf(batch.seconds_left) else max(0.0, batch.seconds_left)
        if limit is not None:
            disarm()
        try:
            return run.runtime.event_loop.run(returned, limit)
        except NotBegun as error:
            log.warning("%s, tenant %r: the handler did not begin: %s", run.pipeline.name, run.tenant, error)
            raise HeldUp from error
    check_returned(returned)
    return returned


def check_returned(returned: Any) -> None:
    """See that a handler has run when it returns.

    Raises:
        HandlerMistake: it returned what was still to be run.
    """
    if isinstance(returned, Iterator | AsyncIterator):
        raise HandlerMistake(
            f"the handler returned an iterator ({type(returned).__name__}), of which nothing has run: return nothing"
        )
