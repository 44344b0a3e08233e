"""The session of a batch as its handler sees it, and how it is reset afterwards.

A handler works on a connection object of its own (`HandlerConnection`), so what it sets on the driver's connection ends
with the batch. What it sets in the session is reset in the message that ends the transaction (`end_checkout`).
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from contextlib import suppress
from threading import Lock, get_ident
from types import TracebackType
from typing import Any, Final, TypeVar

import psycopg
from psycopg.abc import PQGen
from psycopg.adapt import AdaptersMap
from psycopg.pq import ExecStatus, PipelineStatus, TransactionStatus
from psycopg.pq.abc import PGresult

from taskbridge.errors import HandlerMistake
from taskbridge.store.db import Bounded
from taskbridge.store.queries import filled, query, quoted

__all__ = ["BATCH_IS_OVER", "HandlerConnection", "View", "end_checkout"]

T = TypeVar("T")

BATCH_IS_OVER: Final = (
    "the batch is over: a thread or a coroutine that its handler left behind cannot use `batch.connection` any more; "
    "wait for it in the handler, or give it a connection of its own"
)
STILL_IN_USE: Final = (
    "`batch.connection` is still in use: read `stream()` and `copy()` to their end or close them, leave `pipeline()` "
    "blocks, and wait for threads that you started"
)
INTERRUPTED_WITHIN: Final = 1.0
"""Seconds that another thread has to notice that its session was interrupted."""
_FIRST_NAME: Final = 1_000_000
"""Number of the first statement that a handler's connection prepares; those of the session begin at 0."""


class View(Bounded):
    """A second connection object for a session, with adapters and cursors of its own.

    Args:
        session: the first one, whose lock is shared.
        adapters: copied; None: psycopg's.
    """

    _takes_messages = False
    """Whether it receives the notices and notifications of the session instead of the first one."""

    def __init__(self, session: psycopg.Connection[Any], adapters: AdaptersMap | None = None) -> None:
        self._messages = session.pgconn.notice_handler, session.pgconn.notify_handler
        super().__init__(session.pgconn)
        if not self._takes_messages:
            self._return_messages()
        self._session = session
        self.lock = session.lock
        self.answer_timeout = session.answer_timeout if isinstance(session, Bounded) else None
        # It would name prepared statements as the session does.
        self.prepare_threshold = None
        self._own_adapters = AdaptersMap(adapters or psycopg.adapters)

    def __del__(self, *_: Any) -> None:
        """Nothing is left open by it."""

    @property
    def adapters(self) -> AdaptersMap:
        """Its own."""
        return self._own_adapters

    @property
    def is_over(self) -> bool:
        """Whether it is of a batch that is over."""
        return isinstance(self._session, View) and self._session.is_over

    def wait(self, gen: PQGen[T], interval: float = 0.1, timeout: float | None = None) -> T:
        """Wait as `Bounded` does.

        Raises:
            HandlerMistake: the batch is over.
        """
        if self.is_over:
            raise HandlerMistake(BATCH_IS_OVER)
        return super().wait(gen, interval, timeout)

    def _return_messages(self) -> None:
        self.pgconn.notice_handler, self.pgconn.notify_handler = self._messages


class HandlerConnection(View):
    """The connection object of a handler. It cannot be used after `end`.

    Args:
        session: the connection object of the pool.
        seconds: how long to wait for the answer to a statement, or for another thread.
    """

    _takes_messages = True
    is_handlers = True

    def __init__(self, session: Bounded, seconds: float) -> None:
        super().__init__(session, session.adapters)
        self.session = session
        self._is_over = False
        # psycopg uses it only in `with` statements.
        self.lock: _Turn = _Turn(seconds)  # type: ignore[assignment]
        if self.answer_timeout is not None:
            self.answer_timeout = seconds
        # A pooler that supports prepared statements refuses those of the next handler, which have the same names.
        self.prepare_threshold = None if session.pooled else session.prepare_threshold
        self._prepared._prepared_idx = _FIRST_NAME

    @property
    def is_over(self) -> bool:
        """Whether `end` was called."""
        return self._is_over

    @property
    def has_prepared(self) -> bool:
        """Whether a statement was prepared, even if psycopg has forgotten it since."""
        return self._prepared._prepared_idx > _FIRST_NAME

    def end(self) -> None:
        """End its use.

        Raises:
            HandlerMistake: a thread uses it, or a result was not read to its end. The session must be closed.
        """
        if not self.lock.acquire(blocking=False):
            self._interrupt()
            raise HandlerMistake(STILL_IN_USE)
        try:
            if self.pgconn.pipeline_status != PipelineStatus.OFF or (
                self.pgconn.transaction_status == TransactionStatus.ACTIVE
            ):
                raise HandlerMistake(STILL_IN_USE)
            self._is_over = True
            self._return_messages()
        finally:
            self.lock.release()

    def _interrupt(self) -> None:
        """End what another thread waits for: to free a session that libpq works on would crash the process."""
        with suppress(OSError), socket.socket(fileno=os.dup(self.pgconn.socket)) as connected:
            connected.shutdown(socket.SHUT_RDWR)
        self.lock.wait_for_others(INTERRUPTED_WITHIN)

    def rollback(self) -> None:
        """Roll back; nothing happens after the end, when SQLAlchemy gives the session back to its pool."""
        if not self.is_over:
            super().rollback()

    def close(self) -> None:
        """Close the session, unless it is in other use by now."""
        if not self.is_over:
            super().close()

    def cancel(self) -> None:
        """Cancel the session's statement, unless it is in other use by now."""
        if not self.is_over:
            super().cancel()

    def cancel_safe(self, *, timeout: float = 30.0) -> None:
        """Cancel the session's statement, unless it is in other use by now."""
        if not self.is_over:
            super().cancel_safe(timeout=timeout)

    def _deallocate(self, name: bytes | None) -> PQGen[None]:
        # psycopg deallocates everything after a rollback or a DROP, which would include the statements of the session.
        # `end_checkout` finds what is left.
        if name is not None:
            yield from super()._deallocate(name)


class _Turn:
    """The lock of a connection. psycopg's own would be waited for forever if `stream()` was not read to its end.

    Raises:
        HandlerMistake: this thread holds it already, or it was not released in time.
    """

    def __init__(self, seconds: float) -> None:
        self._lock = Lock()
        self._seconds = seconds
        self._thread: int | None = None

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        acquired = self._lock.acquire(blocking, timeout)
        if acquired:
            self._thread = get_ident()
        return acquired

    def wait_for_others(self, seconds: float) -> None:
        """Wait until no other thread holds it, at most so many seconds."""
        if self._thread != get_ident() and self.acquire(timeout=seconds):
            self.release()

    def locked(self) -> bool:
        return self._lock.locked()

    def release(self) -> None:
        self._thread = None
        self._lock.release()

    def __enter__(self) -> None:
        if self._thread == get_ident() or not self.acquire(timeout=self._seconds):
            raise HandlerMistake(STILL_IN_USE)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def end_checkout(session: Bounded, ends: Sequence[str], last: Sequence[str] = ()) -> tuple[bool, list[PGresult]]:
    """End the transaction of a session that a handler had, and reset the session, in one message.

    `ends`: the statements that end the transaction. `last`: statements of a transaction of its own, which may fail.
    Statements that the handler prepared cost another message.

    Returns whether the session may be used again, and the results of the statements. If not, and after an error, it
    must be closed.

    Raises:
        psycopg.Error: the transaction did not end as it should, or its outcome is unknown.
    """
    # Behind a pooler the next message may go to another session, and only the handler prepares statements.
    last_of_reset = query("forget_prepared" if session.pooled else "prepared")
    reset = [query("begin"), *query("reset_session").split(";"), session.settings, last_of_reset, query("commit")]
    before = [*ends, *reset]
    results = session.exchange([*before, *last], len(ends))
    if len(results) < len(before) or results[len(before) - 1].status != ExecStatus.COMMAND_OK:
        return False, []
    if session.pooled:
        return True, results
    prepared = results[len(before) - 2]
    there = {_text(prepared, row) for row in range(prepared.ntuples)}
    known = {name.decode() for name in session._prepared._names.values()}
    if not known <= there:
        # psycopg would execute a statement that the handler has deallocated.
        return False, results
    try:
        if foreign := [filled("deallocate", "", {"name": quoted(name)}) for name in sorted(there - known)]:
            session.exchange(foreign)
    except psycopg.Error:
        return False, results
    return True, results


def _text(result: PGresult, row: int) -> str:
    return (result.get_value(row, 0) or b"").decode()
