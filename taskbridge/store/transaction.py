"""The transaction of one batch: what a handler writes commits with the advance of the cursor, or not at all."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from threading import Event
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import psycopg
from psycopg.errors import InvalidSqlStatementName
from psycopg.pq import TransactionStatus
from sqlalchemy import Connection, Engine, RootTransaction
from sqlalchemy.exc import DBAPIError

from taskbridge.common.histogram import bucket
from taskbridge.common.run_key import RunKey
from taskbridge.common.texts import storable
from taskbridge.declaring.batch import RetryAfter
from taskbridge.declaring.failures import Bisection
from taskbridge.errors import HandlerMistake
from taskbridge.store.checkout import BATCH_IS_OVER, HandlerConnection, end_checkout
from taskbridge.store.db import (
    SHORT_WAIT,
    SILENT,
    Bounded,
    Broken,
    NoAnswer,
    distrust,
    driver_of,
    is_without_session,
    local_settings,
    milliseconds,
    session_name,
    successor_of,
)
from taskbridge.store.history import HistoryRow, insert_statements, report_failed_insert, with_history
from taskbridge.store.page import Page, columns_of
from taskbridge.store.queries import LOCAL, compact, queries, setting

if TYPE_CHECKING:
    from taskbridge.store.orm import BatchSession

__all__ = [
    "NO_BISECTION",
    "ComesAgain",
    "CursorLost",
    "Move",
    "OtherReader",
    "Quarantined",
    "Transaction",
    "advance_together",
]

log = logging.getLogger(__name__)

NO_BISECTION: Final = Bisection()
_AT_WORK: Final = (TransactionStatus.ACTIVE, TransactionStatus.UNKNOWN)
ENDED_TRANSACTION: Final = (
    "the handler committed, rolled back or closed `batch.connection`, so what it wrote did not commit with the cursor: "
    "leave the transaction to the worker, and use `batch.connection.begin_nested()` for a part of it"
)
DEALLOCATED: Final = (
    "the handler deallocated prepared statements that are not its own (`DEALLOCATE ALL`): name those that it prepared"
)


class CursorLost(Exception):
    """Another run owns the cursor, or the same token advanced it elsewhere; nothing of this batch may take effect."""


class ComesAgain(RetryAfter):
    """The batch is rolled back without the handler's fault, and is delivered again at once."""

    def __init__(self) -> None:
        super().__init__(0)


class OtherReader(ComesAgain):
    """Another pipeline began to read the source while the batch was open, and the handler's changes were muted.

    Nothing is muted when the batch is delivered again.
    """


class Quarantined(NamedTuple):
    """Records of a batch that go to quarantine: the reason by external id, and how often each failed alone.

    `cause` is `failed` or `rejected`.
    """

    reasons: Mapping[str, str]
    cause: str
    attempts: int = 1


Advanced: TypeAlias = "bool | Exception | None"
"""The result of an advance: whether to call `note_success`, why the cursor did not move, or None: unknown."""


class Move(NamedTuple):
    """The advance of one cursor past a page, as the values of `advance`.

    It needs no transaction if nothing else commits with it. `row`: the run's row in the run history, if the run ends
    with this advance. `quarantine`: further values of `advance_with_quarantine`, if records of the page go to
    quarantine or leave it.
    """

    key: RunKey
    page: Page
    values: dict[str, Any]
    row: HistoryRow | None = None
    quarantine: Mapping[str, Any] | None = None

    @property
    def quarantined(self) -> int:
        """How many records of the page go to quarantine."""
        return 0 if self.quarantine is None else len(self.quarantine["external_ids"])


class Transaction:
    """One batch's transaction, opened when it is first needed.

    `idle_timeout`: how long the session may be idle between the advance and the commit, such as `5000ms`. `timeout`:
    seconds for which the session may be idle before the advance, or wait for one answer of Postgres.
    """

    def __init__(self, engine: Engine, key: RunKey, source: str, idle_timeout: str, timeout: float) -> None:
        self._engine = engine
        self._source = source
        self._query = queries(engine)
        self._key = key
        self._idle_timeout = idle_timeout
        self._timeout = timeout
        self._connection: Connection | None = None
        self._handlers: HandlerConnection | None = None
        self._transaction: RootTransaction | None = None
        self._session: BatchSession | None = None
        self._began = True
        self._ended = False
        self._muted = False
        self._over = Event()

    @property
    def used(self) -> bool:
        """Whether the handler asked for the connection."""
        return self._connection is not None

    @property
    def waits(self) -> bool:
        """Whether the handler waits for Postgres: it could not begin, or its session has not answered."""
        return not self._began or (self._connection is not None and _is_at_work(self._connection))

    def connect(self) -> Connection:
        """Return the transaction's connection, opening it at the first call.

        The round trip of BEGIN also names the session, so that a successor can end it, and ends the sessions of runs
        that this one replaced: a frozen process keeps its locks on everything that its handler wrote. So no transaction
        may be opened after `close`: it would end the session in which the same run continues.

        Raises:
            HandlerMistake: the batch is over.
        """
        if self._over.is_set():
            raise HandlerMistake(BATCH_IS_OVER)
        connection = self._connection or self._open()
        if self._over.is_set():
            # Another thread closed it before the connection was set.
            self.close()
            raise HandlerMistake(BATCH_IS_OVER)
        return connection

    def _open(self) -> Connection:
        try:
            return self._begin()
        except NoAnswer:
            raise
        except DBAPIError as error:
            if is_without_session(error):
                raise ComesAgain from error
            raise
        except psycopg.OperationalError:
            # A restart of the server broke every connection in the pool.
            distrust(self._engine)
            return self._begin()

    def open_session(self) -> BatchSession:
        """Return the ORM session on the transaction's connection, opening both at the first call.

        Raises:
            HandlerMistake: the batch is over.
        """
        connection = self.connect()
        if self._session is None:
            from taskbridge.store.orm import BatchSession  # noqa: PLC0415 - few handlers use an ORM

            self._session = BatchSession(connection)
        return self._session

    def flush(self) -> None:
        """Flush the ORM session. That may break a constraint, or the session may need a rollback."""
        if self._session is not None:
            self._session.commit()

    def _begin(self) -> Connection:
        self._began = False
        # So that the advance sees the pipelines that exist then, whatever the default of the database is.
        connection = self._engine.connect().execution_options(isolation_level="READ COMMITTED")
        try:
            transaction = connection.begin()
            driver = driver_of(connection)
            with driver.pipeline():  # psycopg sends BEGIN before the first of them
                # The handler's statements have the limits of the role, not ours.
                for statement in local_settings({**driver.limits, "statement_timeout": None}):
                    driver.execute(statement)
                driver.execute(self._query("end_replaced"), successor_of(self._key))
                whose = {**self._key._asdict(), "source": self._source, "session": session_name(self._key)}
                announced = driver.execute(self._query("announce"), {**whose, "idle": milliseconds(self._timeout)})
            *_, muted = announced.fetchone() or ("",)
            self._muted = muted != ""
            self._handlers = _hand_out(connection, driver, self._timeout)
        except BaseException:
            connection.invalidate()
            connection.close()
            raise
        self._connection, self._transaction, self._began = connection, transaction, True
        return connection

    def move(
        self,
        page: Page,
        *,
        bisection: Bisection = NO_BISECTION,
        to_quarantine: Quarantined | None = None,
        first_event_ms: int | None = None,
        row: HistoryRow | None = None,
    ) -> Move:
        """Return the advance of the cursor past `page`.

        Records in `to_quarantine` are put into quarantine, and rows of quarantine whose records were handled are
        deleted. `row` is inserted into the run history after the commit.
        """
        at_xid, at_id = page.position
        values = {
            **self._key._asdict(),
            **columns_of(bisection),
            "sweeps": page.sweeps,
            "target": page.target,
            "finished": page.finished,
            "at_xid": at_xid,
            "at_id": at_id,
            "records": len(page.records),
            "first_event_ms": first_event_ms,
            # Postgres counts from 1.
            "first_event_bucket": bucket(first_event_ms or 0) + 1,
        }
        return Move(self._key, page, values, row, _quarantine_values(page, to_quarantine))

    def advance(self, move: Move) -> bool:
        """Move the cursor and commit, together with everything that was written through `connect`.

        Returns whether to call `note_success`, because something of the pipeline failed before.

        Raises:
            CursorLost: the cursor is not ours, or not where the page was read; all is rolled back.
            HandlerMistake: the handler ended the transaction, or the connection is still in use.
            OtherReader: changes of the handler may be missed; all is rolled back.
        """
        connection, handlers = self._connection, self._handlers
        if connection is None or handlers is None:
            (first_success,) = _advance(self._engine, [move])
            if isinstance(first_success, Exception):
                raise first_success
            return bool(first_success)
        if connection.closed or connection.get_transaction() is not self._transaction:
            raise HandlerMistake(ENDED_TRANSACTION)
        self._take_back(connection, handlers)
        own = handlers.session
        try:
            commits = self._take_over(own)
            name, values = _statement([move])
            # Not in the pipeline before: psycopg ends one with a Flush message, at which the server stops its timer for
            # idle transactions. A process that froze before its commit would keep the cursor locked for ever.
            values["idle_timeout"] = self._idle_timeout
            moved = own.execute(compact(self._query(name)), values).fetchone()
        except InvalidSqlStatementName as error:
            raise HandlerMistake(DEALLOCATED) from error
        if moved is None:
            raise CursorLost
        # Whether its commit waits for the disk is the handler's to choose.
        ends = [setting("synchronous_commit", commits, LOCAL), self._query("commit")]
        self._end(connection, handlers, ends, insert_statements(own, self._query, [move.row] if move.row else []))
        return bool(moved[0])

    def _take_back(self, connection: Connection, handlers: HandlerConnection) -> None:
        """End the handler's use of the session.

        Raises:
            HandlerMistake: it is still in use, so it is closed.
        """
        if handlers.is_over:
            return
        try:
            handlers.end()
        except HandlerMistake:
            connection.invalidate()
            raise
        _take_in(connection, handlers.session)
        if handlers.session.info.encoding != "utf-8":
            # psycopg encodes the whole pipeline before the settings are reset.
            handlers.session.execute(setting("client_encoding", "UTF8", LOCAL))

    def _take_over(self, own: Bounded) -> str:
        """Let our own role and settings hold; return the `synchronous_commit` that the handler left.

        Raises:
            HandlerMistake: the handler ended the transaction.
            OtherReader: another pipeline reads the source by now.
        """
        with own.pipeline():
            left = self._reset(own)
            readers = self._look_for_readers(own) if self._muted else None
        token, commits = left.fetchone() or ("", "")
        if token != self._key.token:
            raise HandlerMistake(ENDED_TRANSACTION)
        if readers is not None and readers.fetchone() == (True,):
            log.info("the batch of tenant %r comes again: %s has another reader", self._key.tenant, self._source)
            raise OtherReader
        return str(commits)

    def _reset(self, own: Bounded) -> psycopg.Cursor[Any]:
        """Fire the handler's deferred triggers under its role and settings, and then return to ours.

        The limits are ours for both: an expired limit of the handler would cancel the advance. The result tells how the
        handler left the transaction.
        """
        limit = None if own.statement_timeout is None else milliseconds(own.statement_timeout)
        own.execute(setting("statement_timeout", limit, LOCAL))
        own.execute(setting("lock_timeout", None, LOCAL))
        left = own.execute(self._query("as_left"))
        own.execute(self._query("fire_deferred"))
        own.execute(setting("session_authorization", None))
        own.execute(setting("role", None))
        own.execute(self._query("reset_settings"))
        for statement in (own.settings, *local_settings(own.limits)):
            own.execute(statement)
        own.execute(self._query("announce_again"), {"session": session_name(self._key), "limit": limit})
        return left

    def _look_for_readers(self, own: Bounded) -> psycopg.Cursor[Any]:
        """Ask whether another pipeline reads the source by now; no other begins before the commit."""
        values = {"pipeline": self._key.pipeline, "source": self._source, "idle_timeout": self._idle_timeout}
        own.execute(self._query("hold_readers"), values)
        return own.execute(self._query("other_readers"), values)

    def _end(
        self, connection: Connection, handlers: HandlerConnection, ends: Sequence[str], last: Sequence[str] = ()
    ) -> None:
        """End the transaction; the session is reset, or closed."""
        again, results = end_checkout(handlers.session, ends, last)
        self._ended = True
        report_failed_insert(results)
        if not again or (handlers.session.pooled and handlers.has_prepared):
            connection.invalidate()

    def close(self) -> bool:
        """Roll back if nothing was committed, and return the connection; return whether its session may still be busy.

        It may be if the handler was interrupted inside a statement, or a statement was not answered in time.
        """
        self._over.set()
        connection, handlers = self._connection, self._handlers
        if connection is None or handlers is None:
            return False
        at_work = _is_at_work(connection)
        # If the session is gone, so is its transaction; what went wrong before says more than this.
        with suppress(Exception):
            if at_work:
                connection.invalidate()
            elif not connection.closed:
                self._take_back(connection, handlers)
        with suppress(Exception):
            if self._session is not None:
                self._session.end()
        with suppress(Exception):
            if handlers.is_over and not self._ended:
                self._end(connection, handlers, [self._query("rollback")])
        with suppress(Exception):
            if not self._ended:
                connection.invalidate()
        with suppress(Exception):
            connection.close()
        self._connection = None
        return at_work


def _hand_out(connection: Connection, own: Bounded, seconds: float) -> HandlerConnection:
    """Replace the connection object of the pool with one for the handler."""
    handlers = HandlerConnection(own, seconds)
    if (prepare := connection.dialect.on_connect()) is not None:
        prepare(handlers)
    pooled: Any = connection.connection
    pooled.dbapi_connection = pooled._connection_record.dbapi_connection = handlers
    return handlers


def _take_in(connection: Connection, own: Bounded) -> None:
    """Return its connection object to the pool; SQLAlchemy's connection keeps the handler's."""
    pooled: Any = connection.connection
    pooled._connection_record.dbapi_connection = own
    pooled.info.clear()
    pooled.record_info.clear()


def _quarantine_values(page: Page, quarantined: Quarantined | None) -> dict[str, Any] | None:
    """Return the further values of `advance_with_quarantine`; None: nothing goes to quarantine or leaves it."""
    reasons, cause, attempts = quarantined or Quarantined({}, "failed")
    leaving = [external_id for external_id in page.leaving if external_id not in reasons]
    if not leaving and not reasons:
        return None
    records = [record for record in page.records if record.external_id in reasons]
    return {
        "leaving": leaving,
        "external_ids": [record.external_id for record in records],
        "revisions": [record.revision for record in records],
        "reasons": [storable(reasons[record.external_id]) for record in records],
        "failures": attempts,
        "cause": cause,
        "failing_since": page.failing_since,
    }


def advance_together(engine: Engine, moves: Sequence[Move]) -> list[Advanced]:
    """Move cursors past batches with which nothing else commits, in one round trip; return the result of each.

    None of them waits long for a lock. If a cursor has no result, only `Transaction.advance` can tell why, which may
    take long.

    Raises:
        psycopg.Error: Postgres did not answer, or the connection broke; which cursors moved is unknown.
    """
    try:
        return _advance(engine, moves, lock_timeout=SHORT_WAIT)
    except (Broken, NoAnswer):
        raise
    except psycopg.Error:
        # One of them is the cause. To find out which, each is moved alone.
        found: list[Advanced] = [None] * len(moves)
    for at, move in enumerate(moves):
        try:
            (found[at],) = _advance(engine, [move], lock_timeout=SHORT_WAIT)
        except SILENT as error:
            # The results of those before it are known.
            found[at] = error
            break
        except psycopg.Error:
            continue
    return found


def _advance(engine: Engine, moves: Sequence[Move], **settings: str) -> list[Advanced]:
    name, values = _statement(moves)
    rows = [move.row for move in moves if move.row]
    found = with_history(engine, compact(queries(engine)(name)), values, rows, **settings)
    moved = {(pipeline, tenant): bool(asked) for asked, pipeline, tenant, _ in found}
    return [moved.get((move.key.pipeline, move.key.tenant), CursorLost()) for move in moves]


def _statement(moves: Sequence[Move]) -> tuple[str, dict[str, Any]]:
    """Return the query that makes several advances, by its name, and its values: arrays."""
    values: dict[str, Any] = {name: [move.values[name] for move in moves] for name in moves[0].values}
    quarantine = moves[0].quarantine if len(moves) == 1 else None
    name = "advance" if quarantine is None else "advance_with_quarantine"
    return name, {**values, **(quarantine or {}), "idle_timeout": None}


def _is_at_work(connection: Connection) -> bool:
    """Whether the session may be inside a statement, as far as its process here knows."""
    if connection.closed:
        return False
    if connection.invalidated:
        return True
    driver = connection.connection.driver_connection
    return isinstance(driver, psycopg.Connection) and driver.info.transaction_status in _AT_WORK
