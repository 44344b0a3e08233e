"""Storing what requests bring, in an event loop: a pool of asynchronous sessions, and the statement of one webhook."""

from __future__ import annotations

import asyncio
from decimal import Decimal
from typing import Any, Final, NamedTuple, TypeVar

import psycopg
from psycopg.abc import PQGen
from psycopg.pq import TransactionStatus
from sqlalchemy import Engine

from taskbridge.errors import Unavailable
from taskbridge.store.bounded import Bounded
from taskbridge.store.queries import queries, setting
from taskbridge.store.records import Statement, refused

__all__ = ["AsyncPool", "Incoming", "forget_received", "receive_statement"]

T = TypeVar("T")

SESSIONS: Final = 10
"""Sessions of one event loop, and so transactions at a time."""
WAIT_SECONDS: Final = 2.0
"""How long a transaction waits for a session."""
MOST_WAITING: Final = 2_000
"""Transactions that may wait for a session."""
LOCK_TIMEOUT = "1s"
"""How long a transaction waits for a record that another one is writing; the others have fewer sessions meanwhile."""
FORGOTTEN_AT_ONCE: Final = 1_000


class Incoming(NamedTuple):
    """What one webhook brings: a record as JSON text, with the sender's id of the webhook and its version, if any.

    Without a document the record is deleted. `traceparent`: the span of the request, where it is traced.
    """

    source: str
    delivery: str | None
    tenant: str
    key: str
    version: Decimal | None
    document: str | None
    traceparent: str | None = None


def receive_statement(incoming: Incoming) -> Statement:
    """Return what stores a webhook's record; it gives whether the delivery is new, and whether the record changed."""
    return Statement("receive", incoming._asdict())


def forget_received(engine: Engine) -> bool:
    """Delete ids of webhooks that are older than 30 days; return whether there may be more."""
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        gone = connection.exec_driver_sql(queries(engine)("forget_received"), {"limit": FORGOTTEN_AT_ONCE}).all()
    return len(gone) == FORGOTTEN_AT_ONCE


class AsyncPool:
    """Sessions of one event loop, opened when they are needed, in the way that `engine` opens its own.

    It is neither SQLAlchemy's asynchronous pool, which costs each transaction several times as much, nor psycopg_pool,
    which connects in the background: whoever asks would learn neither at once nor why there is no session.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._query = queries(engine)
        self._free = asyncio.Semaphore(SESSIONS)
        self._idle: list[_Session] = []
        self._waiting = 0

    def __del__(self) -> None:
        """Close the sessions of an event loop that ended without `close`, as that of an app that was mounted."""
        for session in self._idle:
            session.pgconn.finish()

    async def execute(self, *statements: Statement) -> list[list[tuple[Any, ...]]]:
        """Execute statements as one transaction, in one round trip; it is durable when this returns. Return their rows.

        Raises:
            Unavailable: all sessions are in use for `WAIT_SECONDS`, or too many others wait.
            InvalidInput: Postgres refuses a record.
        """
        await self._acquire()
        try:
            session = self._take_idle() or await self._open()
            try:
                with refused():
                    return await session.execute_all([(self._query(one.query), one) for one in statements])
            finally:
                if session.pgconn.transaction_status == TransactionStatus.IDLE:
                    self._idle.append(session)
                else:
                    # It broke, or gave no answer in time. The others may be no better.
                    await session.close()
                    await self.close()
        finally:
            self._free.release()

    async def open(self) -> None:
        """Open a session, so that the first transaction does not wait for it."""
        self._idle.append(await self._open())

    async def close(self) -> None:
        """Close the sessions that are idle."""
        while self._idle:
            await self._idle.pop().close()

    async def _acquire(self) -> None:
        if self._waiting >= MOST_WAITING:
            raise Unavailable("more came than can be stored", f"{MOST_WAITING:,} others wait for Postgres")
        self._waiting += 1
        try:
            async with asyncio.timeout(WAIT_SECONDS if self._free.locked() else None):
                await self._free.acquire()
        except TimeoutError:
            full = f"all {SESSIONS} sessions of Postgres were in use for {WAIT_SECONDS:g} s"
            raise Unavailable("more came than can be stored", full) from None
        finally:
            self._waiting -= 1

    def _take_idle(self) -> _Session | None:
        while self._idle:
            session = self._idle.pop()
            if not session.bounded.ended:
                return session
            session.pgconn.finish()
        return None

    async def _open(self) -> _Session:
        session = _Session(await asyncio.to_thread(self._open_bounded))
        await session.set_autocommit(True)
        return session

    def _open_bounded(self) -> Bounded:
        pooled = self._engine.raw_connection()
        driver = pooled.driver_connection
        assert isinstance(driver, Bounded)  # noqa: S101 - for the type: the engine opens no others
        pooled.detach()
        driver.autocommit = True
        driver.execute(setting("lock_timeout", LOCK_TIMEOUT))
        return driver


class _Session(psycopg.AsyncConnection[Any]):
    """An asynchronous connection over the same session as `bounded`, whose limits it keeps."""

    def __init__(self, bounded: Bounded) -> None:
        super().__init__(bounded.pgconn)
        self.bounded = bounded
        self.prepare_threshold = bounded.prepare_threshold

    async def wait(self, gen: PQGen[T], interval: float = 0.1, timeout: float | None = None) -> T:
        """Wait as `Bounded.wait` does."""
        if timeout is not None:
            return await super().wait(gen, interval, timeout)
        if self.bounded.answer_timeout is not None:
            gen = self.bounded._in_time(gen, self.bounded.answer_timeout)
        try:
            return await super().wait(gen, interval)
        except psycopg.Error as error:
            if error.diag.message_primary:
                error.args = (error.diag.message_primary,)
            raise

    async def execute_all(self, statements: list[tuple[str, Statement]]) -> list[list[tuple[Any, ...]]]:
        """Execute statements as one transaction, and return the rows of each."""
        if len(statements) == 1:
            ((text, one),) = statements
            cursors = [await self.execute(text, one.values)]
        else:
            async with self.pipeline():
                # What is in a pipeline is one transaction.
                cursors = [await self.execute(text, one.values) for text, one in statements]
        return [await cursor.fetchall() for cursor in cursors]
