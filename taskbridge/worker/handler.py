"""One call of a pipeline's handler: its time limit, its middleware, its event loop, and what it returned or raised."""

from __future__ import annotations

import inspect
import logging
import math
import time
from collections.abc import AsyncIterator, Container, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import copy_context
from decimal import localcontext
from functools import partial
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Final

import psycopg
from celery.exceptions import SoftTimeLimitExceeded

from taskbridge.common.texts import error_text, log_error
from taskbridge.declaring.batch import Batch, Record, RetryAfter
from taskbridge.declaring.failures import is_caused_by
from taskbridge.errors import HandlerMistake
from taskbridge.process.event_loop import NotBegun
from taskbridge.process.shutdown import ends_process
from taskbridge.process.time_limit import disarm, longest_call, soft_time_limit
from taskbridge.store import ComesAgain, Page, Transaction
from taskbridge.worker.middleware import Hook, middleware

if TYPE_CHECKING:
    from taskbridge.worker.delivery import Run

__all__ = ["HandlerFailed", "call", "call_hooks", "check_returned", "done_first", "has_waited"]

log = logging.getLogger(__name__)

OUT_OF_ORDER: Final = (
    "the handler wrote through the batch, returned RetryAfter, and marked records after one that it did not mark: "
    "handle records in the order of the batch, or raise RetryAfter, which rolls back what it wrote"
)


class HandlerFailed(Exception):
    """The handler raised `error` for `page`, or what it wrote cannot be committed.

    `progressed`: the cursor has moved past the records that the handler had marked as handled, and `page` has the rest;
    otherwise nothing took effect. `waited`: Postgres did not answer the batch's session before a time limit, or before
    the session was lost. `returned`: the handler returned RetryAfter, so what it wrote takes effect together with the
    records that it had marked. `ends_process`: it did not fail, but its process was told to end.
    """

    def __init__(
        self,
        page: Page,
        error: BaseException,
        *,
        waited: bool = False,
        returned: bool = False,
        ends_process: bool = False,
    ) -> None:
        super().__init__(error)
        self.page = page
        self.error = error
        self.progressed = False
        self.waited = waited
        self.returned = returned
        self.ends_process = ends_process

    @property
    def to_raise(self) -> BaseException:
        """This error, or the one that ends the process."""
        return self.error if self.ends_process else self

    @property
    def exception(self) -> Exception:
        """The exception for the run: `error`, unless that would end more than the run, like SystemExit."""
        if isinstance(self.error, Exception):
            return self.error
        mistake = HandlerMistake(
            f"the handler raised {error_text(self.error)}, which does not end a worker: raise an Exception"
        )
        mistake.__cause__ = self.error
        return mistake


class HeldUp(ComesAgain):
    """The handler is a coroutine and could not begin, because another tenant's blocks the loop of the process."""


def call(run: Run, page: Page, batch: Batch, transaction: Transaction, hooks: list[Hook]) -> HandlerFailed | None:
    """Call the handler, note its pace, and return how it failed; None: it has handled the batch.

    Hooks for after the commit are added to `hooks`. Context variables that the handler sets, including decimal's
    context, last until the call and its hooks are over.
    """
    pace = run.runtime.paces[run.pipeline.name]
    is_full = not page.finished and run.began_together == 1 and len(batch) >= run.most_records
    started = time.monotonic()

    def after_commit(hook: Hook) -> None:
        hooks.append(partial(copy_context().run, hook))

    def in_context() -> Any:
        # The time limit is innermost, so that its error cannot interrupt the other context managers.
        with localcontext(), _traced(run, batch), middleware(batch, after_commit), _limited(run):
            result = _awaited(run, run.pipeline.handler(batch), batch)
            transaction.flush()
        return result

    try:
        returned = copy_context().run(in_context)
    except BaseException as error:
        if ends_process(error):
            return HandlerFailed(page, error, ends_process=True)
        pace.note_failed(time.monotonic() - started)
        return HandlerFailed(page, error, waited=has_waited(transaction, error))
    finally:
        batch.end_call()
    if isinstance(returned, RetryAfter):
        pace.note_failed(time.monotonic() - started)
        return HandlerFailed(page, returned, returned=True)
    pace.note(len(batch), time.monotonic() - started, run.tenant if is_full else None)
    return None


def call_hooks(run: Run, hooks: Sequence[Hook]) -> None:
    """Call the hooks for after the commit. The batch stays handled even if a hook fails."""
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
        log_error(log, error, "%s, tenant %r: a hook after the commit was interrupted", *run.key[:2])


def has_waited(transaction: Transaction, error: BaseException) -> bool:
    """Whether the handler was waiting for Postgres until this error ended the wait."""
    # A session with an open stream has not answered either, whatever the handler raises.
    return transaction.waits and is_caused_by(error, (SoftTimeLimitExceeded, psycopg.OperationalError))


def done_first(batch: Batch, records: Sequence[Record], undecodable: Container[str] = (), *, wrote: bool) -> int:
    """Return how many of the first records are done after a handler that did not handle all; 0: nothing is kept.

    Raises:
        HandlerMistake: the handler wrote for records that it handled out of order.
    """
    done = batch.done
    count = sum(
        1 for _ in takewhile(lambda record: record.external_id in done or record.external_id in undecodable, records)
    )
    marked = done - batch.rejected.keys()
    if wrote and count and not marked <= {record.external_id for record in records[:count]}:
        raise HandlerMistake(OUT_OF_ORDER)
    return count


def check_returned(returned: Any) -> None:
    """Check that the handler has run when it returns.

    Raises:
        HandlerMistake: it returned an iterator that has not run.
    """
    if isinstance(returned, Iterator | AsyncIterator):
        raise HandlerMistake(
            f"the handler returned an iterator ({type(returned).__name__}), which has not run: return nothing"
        )


def _traced(run: Run, batch: Batch) -> AbstractContextManager[None]:
    return nullcontext() if run.trace is None else run.trace.call(len(batch))


@contextmanager
def _limited(run: Run) -> Iterator[None]:
    """Limit the block to the time that one call of the handler may take."""
    limit = run.pipeline.soft_time_limit
    run.ownership.ends_at = math.inf if limit is None else time.monotonic() + longest_call(limit)
    try:
        with soft_time_limit(limit):
            yield
    finally:
        run.ownership.ends_at = math.inf


def _awaited(run: Run, returned: Any, batch: Batch) -> Any:
    """Await what the handler returned, if it is awaitable, and return the result."""
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
