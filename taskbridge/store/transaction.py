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
from taskbridge.store.db import (
    GRACE,
    SHORT_WAIT,
    SILENT,
    Bounded,
    Broken,
    NoAnswer,
    distrust,
    driver_of,
    is_without_session,
    local_settings,
    session_name,
    successor_of,
)
from taskbridge.store.history import HistoryRow, insert_statements, report_failed_insert, with_history
from taskbridge.store.lent import BATCH_IS_OVER, Lent, end_lent, exchange
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
    "advance",
    "advance_together",
]

log = logging.getLogger(__name__)

NO_BISECTION: Final = Bisection()
_AT_WORK: Final = (TransactionStatus.ACTIVE, TransactionStatus.UNKNOWN)
ENDED_TRANSACTION: Final = (
    "the handler committed, rolled back or closed `batch.connection`, so what it wrote did not commit with the cursor: "
    "leave the transaction to the runner, and use `batch.connection.begin_nested()` for a part of it"
)
DEALLOCATED: Final = (
    "the handler deallocated prepared statements that are not its own (`DEALLOCATE ALL`): name those that it prepared"
)


class CursorLost(Exception):
    """Another run owns the cursor, or the same token advanced it elsewhere; nothing of this batch may take effect."""


class ComesAgain(RetryAfter):
    """Nothing of the batch takes effect, through no fault of the handler's, and it comes again at once."""

    def __init__(self) -> None:
        super().__init__(0)


class OtherReader(ComesAgain):
    """Another pipeline began to read the source while the batch was open, and what the handler wrote back was muted.

    When the batch comes again, nothing is muted.
    """


class NoneFree(ComesAgain):
    """Postgres, or a pooler in front of it, has no session left for what the handler does."""


class Quarantined(NamedTuple):
    """Records of a batch that go to quarantine: the reason by external id, and how often each failed alone.

    `cause` is `failed` or `rejected`.
    """

    reasons: Mapping[str, str]
    cause: str
    attempts: int = 1


Advanced: TypeAlias = "bool | Exception | None"
"""What came of an advance: whether to call `note_success`, why the cursor did not move, or nothing that is known."""


class _Moved(NamedTuple):
    """A cursor that moved in a transaction that is open. `asked`: whether to call `note_success`.

    `commits`: the handler's own `synchronous_commit`, where the commit is to have it.
    """

    asked: bool
    commits: str


class Move(NamedTuple):
    """The advance of one cursor, as the values of `advance`. It needs no transaction where nothing goes with it.

    `row`: what the run history says of the run, if it ends with this advance.
    """

    key: RunKey
    values: dict[str, Any]
    row: HistoryRow | None = None


class Transaction:
    """One batch's transaction, opened when it is first needed.

    `idle_timeout`: how long the session may be idle between the advance and the commit, such as `5000ms`. `timeout`:
    seconds that the session may be idle before the advance, or wait for one answer of Postgres.
    """

    def __init__(self, engine: Engine, key: RunKey, source: str, idle_timeout: str, timeout: float) -> None:
        self._engine = engine
        self._source = source
        self._query = queries(engine)
        self._key = key
        self._idle_timeout = idle_timeout
        self._timeout = timeout
        self._connection: Connection | None = None
        self._own: Bounded | None = None
        self._lent: Lent | None = None
        self._ended = False
        self._transaction: RootTransaction | None = None
        self._session: BatchSession | None = None
        self._began = True
        self._muted = False
        self._over = Event()

    @property
    def used(self) -> bool:
        """Whether the handler asked for the connection."""
        return self._lent is not None

    @property
    def waits(self) -> bool:
        """Whether it could not begin, or its session has not answered: then Postgres keeps the handler waiting."""
        return not self._began or (self._connection is not None and _is_at_work(self._connection))

    def connect(self) -> Connection:
        """Return the transaction's connection, opening it at the first call.

        The round trip of BEGIN also gives the session its name, by which a successor can end it, and ends the sessions
        of runs that this one replaced: a frozen process keeps the locks on all that its handler wrote. So none may be
        opened after `close`: it would end the session of what the same run does next.

        Raises:
            HandlerMistake: the batch is over.
        """
        if self._over.is_set():
            raise HandlerMistake(BATCH_IS_OVER)
        connection, own = self._open()
        if self._over.is_set():
            # Another thread closed it meanwhile, and saw no connection.
            self.close()
            raise HandlerMistake(BATCH_IS_OVER)
        if self._lent is None:
            self._lent = _hand_out(connection, own, self._timeout)
        return connection

    def _open(self) -> tuple[Connection, Bounded]:
        """Return SQLAlchemy's connection and psycopg's, in the batch's transaction."""
        if self._connection is None:
            try:
                self._begin()
            except NoAnswer:
                raise
            except DBAPIError as error:
                if is_without_session(error):
                    raise NoneFree from error
                raise
            except psycopg.OperationalError:
                # A server that restarted broke every connection that lies in the pool.
                distrust(self._engine)
                self._begin()
        assert self._connection is not None  # noqa: S101 - for the type: `_begin` sets it or raises
        assert self._own is not None  # noqa: S101 - the same
        return self._connection, self._own

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
        """Write what the ORM session still holds. It may break a constraint, or the session may wait for a rollback."""
        if self._session is not None:
            self._session.commit()

    def _begin(self) -> None:
        self._began = False
        # So that the advance sees which pipelines there are then, whatever the database's default is.
        connection = self._engine.connect().execution_options(isolation_level="READ COMMITTED")
        try:
            transaction = connection.begin()
            driver = driver_of(connection)
            assert isinstance(driver, Bounded)  # noqa: S101 - for the type: the engine is ours
            with driver.pipeline():  # psycopg sends BEGIN before the first of them
                # The handler's statements have the limits of its role, not those of ours.
                for statement in local_settings({**driver.limits, "statement_timeout": None}):
                    driver.execute(statement)
                driver.execute(self._query("end_replaced"), successor_of(self._key))
                idle = f"{round(self._timeout * 1000)}ms"
                whose = {**self._key._asdict(), "source": self._source}
                announced = driver.execute(
                    self._query("announce"), {**whose, "session": session_name(self._key), "idle": idle}
                )
            *_, muted = announced.fetchone() or ("",)
            self._muted = muted != ""
        except BaseException:
            connection.invalidate()
            connection.close()
            raise
        self._connection, self._own, self._transaction, self._began = connection, driver, transaction, True

    def move(
        self,
        page: Page,
        *,
        bisection: Bisection = NO_BISECTION,
        first_event_ms: int | None = None,
        row: HistoryRow | None = None,
    ) -> Move:
        """Return the advance of the cursor past `page`, after which `row` is inserted into the run history."""
        return Move(self._key, self._moving(page, bisection, first_event_ms), row)

    def advance(
        self,
        page: Page,
        *,
        bisection: Bisection = NO_BISECTION,
        to_quarantine: Quarantined | None = None,
        first_event_ms: int | None = None,
        row: HistoryRow | None = None,
    ) -> bool:
        """Move the cursor past `page` and commit, together with all that was written through `connect`.

        Records in `to_quarantine` are put into quarantine, and rows of quarantine whose records were handled are
        deleted. `row` is inserted into the run history after the commit. Returns whether to call `note_success`:
        something of the pipeline failed before.

        Raises:
            CursorLost: the cursor is not ours, or not where the page was read; all is rolled back.
            HandlerMistake: the handler ended the transaction, or the connection is still in use.
            OtherReader: what the handler wrote may be missed; all is rolled back.
        """
        reasons = to_quarantine.reasons if to_quarantine else {}
        leaving = [external_id for external_id in page.leaving if external_id not in reasons]
        move = self.move(page, bisection=bisection, first_event_ms=first_event_ms, row=row)
        if not self.used and not leaving and not reasons:
            return advance(self._engine, move)
        connection, own = self._open()
        if connection.closed or connection.get_transaction() is not self._transaction:
            raise HandlerMistake(ENDED_TRANSACTION)
        self._take_back(connection, own)
        try:
            moved = self._advance(own, move)
        except InvalidSqlStatementName as error:
            raise HandlerMistake(DEALLOCATED) from error
        if leaving:
            own.execute(self._query("leave_quarantine"), {**self._key._asdict(), "external_ids": leaving})
        if to_quarantine is not None and reasons:
            self._quarantine(own, page, to_quarantine)
        self._commit(connection, own, moved, row)
        return moved.asked

    def _take_back(self, connection: Connection, own: Bounded) -> None:
        """End the handler's use of the session.

        Raises:
            HandlerMistake: it is still in use, so it is closed.
        """
        if self._lent is None or self._lent.is_over:
            return
        try:
            self._lent.end()
        except HandlerMistake:
            connection.invalidate()
            raise
        _take_in(connection, own)
        if own.info.encoding != "utf-8":
            # psycopg encodes all of a pipeline before the settings are reset.
            own.execute(setting("client_encoding", "UTF8", LOCAL))

    def _advance(self, own: Bounded, move: Move) -> _Moved:
        """Move the cursor, under our own role and settings."""
        commits, usual = self._take_over(own)
        values = {**_columns([move]), "idle_timeout": self._idle_timeout}
        # Not in the pipeline before: psycopg ends one with a Flush message, at which the server stops its timer for
        # idle transactions. A process that froze before its commit would then keep the cursor locked for ever.
        row = own.execute(compact(self._query("advance")), values).fetchone()
        if row is None:
            raise CursorLost
        return _Moved(bool(row[0]), commits if move.values["records"] and commits != usual else "")

    def _take_over(self, own: Bounded) -> tuple[str, str]:
        """Let our own role and settings hold, if the session was lent.

        Returns the `synchronous_commit` that the handler left, and the usual one.

        Raises:
            HandlerMistake: the handler ended the transaction.
            OtherReader: another pipeline reads the source by now.
        """
        if self._lent is None and not self._muted:
            return "", ""
        left = found = readers = None
        with own.pipeline():
            if self._lent is not None:
                left, found = self._reset(own)
            if self._muted:
                readers = self._look_for_readers(own)
        token, commits = _row(left) or (self._key.token, "")
        if token != self._key.token:
            raise HandlerMistake(ENDED_TRANSACTION)
        if _row(readers) == (True,):
            log.info("the batch of tenant %r comes again: %s has another reader", self._key.tenant, self._source)
            raise OtherReader
        *_, usual = _row(found) or ("",)
        return str(commits), str(usual)

    def _reset(self, own: Bounded) -> tuple[psycopg.Cursor[Any], psycopg.Cursor[Any]]:
        """Let what the handler deferred run under its role and settings, and what follows under ours.

        The limits are ours for both: a limit of the handler's that is over would end the advance.
        """
        seconds = own.own_answer_timeout
        limit = f"{round((seconds - GRACE) * 1000)}ms" if seconds else None
        own.execute(setting("statement_timeout", limit, LOCAL))
        own.execute(setting("lock_timeout", None, LOCAL))
        left = own.execute(self._query("as_left"))
        own.execute(self._query("fire_deferred"))
        own.execute(setting("session_authorization", None))
        own.execute(setting("role", None))
        own.execute(self._query("reset_settings"))
        for statement in (own.settings, *local_settings(own.limits)):
            own.execute(statement)
        values = {"session": session_name(self._key), "limit": limit}
        return left, own.execute(self._query("announce_again"), values)

    def _look_for_readers(self, own: Bounded) -> psycopg.Cursor[Any]:
        """Ask whether another pipeline reads the source by now; none begins to, until the commit."""
        values = {"pipeline": self._key.pipeline, "source": self._source, "idle_timeout": self._idle_timeout}
        own.execute(self._query("hold_readers"), values)
        return own.execute(self._query("other_readers"), values)

    def _commit(self, connection: Connection, own: Bounded, moved: _Moved, row: HistoryRow | None) -> None:
        insert = insert_statements(own, self._query, [row] if row else [])
        if self._lent is None:
            report_failed_insert(exchange(own, [self._query("commit"), *insert], 1))
            return
        waits = [setting("synchronous_commit", moved.commits, LOCAL)] if moved.commits else []
        self._end(connection, own, [*waits, self._query("commit")], insert)

    def _end(self, connection: Connection, own: Bounded, ends: Sequence[str], last: Sequence[str] = ()) -> None:
        """End the transaction of a session that was lent, which is new afterwards or closed."""
        again, results = end_lent(own, ends, last)
        self._ended = True
        report_failed_insert(results)
        if not again or (own.pooled and self._lent is not None and self._lent.has_prepared):
            connection.invalidate()

    def _moving(self, page: Page, bisection: Bisection, first_event_ms: int | None) -> dict[str, Any]:
        at_xid, at_id = page.position
        return {
            **self._key._asdict(),
            **_first_event(first_event_ms),
            **columns_of(bisection),
            "sweeps": page.sweeps,
            "target": page.target,
            "finished": page.finished,
            "at_xid": at_xid,
            "at_id": at_id,
            "records": len(page.records),
        }

    def _quarantine(self, own: Bounded, page: Page, quarantined: Quarantined) -> None:
        records = [record for record in page.records if record.external_id in quarantined.reasons]
        own.execute(
            self._query("quarantine_records"),
            {
                **self._key._asdict(),
                "external_ids": [record.external_id for record in records],
                "revisions": [record.revision for record in records],
                "reasons": [storable(quarantined.reasons[record.external_id]) for record in records],
                "attempts": quarantined.attempts,
                "cause": quarantined.cause,
                "failing_since": page.failing_since,
            },
        )

    def close(self) -> bool:
        """Roll back what was not committed and give the connection back; return whether its session may go on.

        It does where the handler was interrupted inside a statement, and where that got no answer in time.
        """
        self._over.set()
        connection, own = self._connection, self._own
        if connection is None or own is None:
            return False
        at_work = _is_at_work(connection)
        # Where the session is gone, so is its transaction; what went wrong before says more than this.
        with suppress(Exception):
            if at_work:
                connection.invalidate()
            elif not connection.closed:
                self._take_back(connection, own)
        with suppress(Exception):
            if self._session is not None:
                self._session.end()
        with suppress(Exception):
            if self._lent is not None and self._lent.is_over and not self._ended:
                self._end(connection, own, [self._query("rollback")])
        with suppress(Exception):
            if self._lent is not None and not self._ended:
                connection.invalidate()
        with suppress(Exception):
            connection.close()
        self._connection = None
        return at_work


def _hand_out(connection: Connection, own: Bounded, seconds: float) -> Lent:
    """Put a connection object for the handler into the place of the session's own."""
    lent = Lent(own, seconds)
    if (prepare := connection.dialect.on_connect()) is not None:
        prepare(lent)
    pooled: Any = connection.connection
    pooled.dbapi_connection = pooled._connection_record.dbapi_connection = lent
    return lent


def _take_in(connection: Connection, own: Bounded) -> None:
    """Let the pool have the session's own connection object again; SQLAlchemy's connection keeps what was lent."""
    pooled: Any = connection.connection
    pooled._connection_record.dbapi_connection = own
    pooled.info.clear()
    pooled.record_info.clear()


def _row(cursor: psycopg.Cursor[Any] | None) -> tuple[Any, ...] | None:
    return None if cursor is None else cursor.fetchone()


def advance(engine: Engine, move: Move) -> bool:
    """Move a cursor past a batch with which nothing else has to commit; return whether to call `note_success`.

    Raises:
        CursorLost: the cursor is not ours, or not where the batch was read.
    """
    (moved,) = _advance_at_once(engine, [move])
    if isinstance(moved, Exception):
        raise moved
    return bool(moved)


def advance_together(engine: Engine, moves: Sequence[Move]) -> list[Advanced]:
    """Move cursors as `advance` does, in one round trip and one commit; return what came of each.

    None of them waits for a lock. Where a cursor has no result, only `advance` can say what comes of it, and may take
    long.

    Raises:
        psycopg.Error: Postgres did not answer, or the connection broke; nothing is known of any.
    """
    try:
        return _advance_at_once(engine, moves, lock_timeout=SHORT_WAIT)
    except (Broken, NoAnswer):
        raise
    except psycopg.Error:
        # One of them is to blame. Which one, only each by itself can say.
        found: list[Advanced] = [None] * len(moves)
    for at, move in enumerate(moves):
        try:
            (found[at],) = _advance_at_once(engine, [move], lock_timeout=SHORT_WAIT)
        except SILENT as error:
            # What came of those before it is known.
            found[at] = error
            break
        except psycopg.Error:
            continue
    return found


def _advance_at_once(engine: Engine, moves: Sequence[Move], **settings: str) -> list[Advanced]:
    values = {**_columns(moves), "idle_timeout": None}
    rows = [move.row for move in moves if move.row]
    found = with_history(engine, compact(queries(engine)("advance")), values, rows, **settings)
    moved = {(pipeline, tenant): asked == "t" for asked, pipeline, tenant, _ in found}
    return [moved.get((move.key.pipeline, move.key.tenant), CursorLost()) for move in moves]


def _columns(moves: Sequence[Move]) -> dict[str, list[Any]]:
    """Return the values of several advances, as arrays."""
    return {name: [move.values[name] for move in moves] for name in moves[0].values}


def _is_at_work(connection: Connection) -> bool:
    """Whether the session may be inside a statement, as far as its process here knows."""
    if connection.closed:
        return False
    if connection.invalidated:
        return True
    driver = connection.connection.driver_connection
    return isinstance(driver, psycopg.Connection) and driver.info.transaction_status in _AT_WORK


def _first_event(milliseconds: int | None) -> dict[str, int | None]:
    """Return how long a burst's first event took, and its bucket, as Postgres counts: from 1."""
    return {"first_event_ms": milliseconds, "first_event_bucket": bucket(milliseconds or 0) + 1}
