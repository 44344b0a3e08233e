"""Storing the contents of requests in an event loop: a pool of asynchronous sessions, and the webhook statement."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from decimal import Decimal
from typing import Any, Final, NamedTuple, TypeVar

import psycopg
from psycopg.abc import PQGen
from psycopg.pq import TransactionStatus
from psycopg.waiting import Ready, Wait
from sqlalchemy import Engine

from taskbridge.errors import Unavailable
from taskbridge.store.db import AsyncPipeline, Bounded, NoAnswer, fetch, local_settings, new_session
from taskbridge.store.queries import queries, query, setting
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
"""How long a transaction waits for a record that another one is writing, while the session is not free for others."""
FORGOTTEN_AT_ONCE: Final = 1_000


class Incoming(NamedTuple):
    """What one webhook brings: a record as JSON text, with the sender's id of the webhook and its version, if any.

    Without a document the record is deleted. `traceparent`: the span of the request, if it is traced.
    """

    source: str
    delivery: str | None
    tenant: str
    key: str
    version: Decimal | None
    document: str | None
    traceparent: str | None = None


def receive_statement(incoming: Incoming) -> Statement:
    """Return the statement that stores a webhook's record; it returns whether the delivery is new and what changed."""
    return Statement("receive", incoming._asdict())


def forget_received(engine: Engine) -> bool:
    """Delete ids of webhooks that are older than 30 days; return whether there may be more."""
    return len(fetch(engine, "forget_received", {"limit": FORGOTTEN_AT_ONCE})) == FORGOTTEN_AT_ONCE


class AsyncPool:
    """Sessions of one event loop, opened on demand in the same way as those of `engine`.

    SQLAlchemy's asynchronous pool would cost each transaction several times as much. psycopg_pool connects in the
    background, so a caller would learn neither at once nor why there is no session.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._query = queries(engine)
        self._free = asyncio.Semaphore(SESSIONS)
        self._idle: list[_Session] = []
        self._waiting = 0

    def __del__(self) -> None:
        """Close the sessions of an event loop that ended without `close`, such as that of a mounted app."""
        for session in self._idle:
            session.pgconn.finish()

    async def execute(self, *statements: Statement) -> list[list[tuple[Any, ...]]]:
        """Execute statements as one durable transaction, in one round trip, and return their rows.

        Raises:
            Unavailable: all sessions are in use for `WAIT_SECONDS`, or too many others are waiting.
            InvalidInput: Postgres rejects a record.
        """
        await self._acquire()
        try:
            session = self._take_idle() or await self._open()
            try:
                with refused():
                    queries_and_values = [(self._query(statement.query), statement) for statement in statements]
                    return await session.execute_all(queries_and_values)
            finally:
                if session.pgconn.transaction_status == TransactionStatus.IDLE:
                    self._idle.append(session)
                else:
                    # It broke, or did not answer in time, and so may the others.
                    await session.close()
                    await self.close()
        finally:
            self._free.release()

    async def open(self) -> None:
        """Open a session, so that the first transaction does not wait for it."""
        self._idle.append(await self._open())

    async def close(self) -> None:
        """Close the idle sessions."""
        while self._idle:
            await self._idle.pop().close()

    async def _acquire(self) -> None:
        if not self._free.locked():
            await self._free.acquire()
            return
        if self._waiting >= MOST_WAITING:
            raise Unavailable("more came than can be stored", f"{MOST_WAITING:,} others wait for Postgres")
        self._waiting += 1
        try:
            async with asyncio.timeout(WAIT_SECONDS):
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
        # A session of the pool may have prepared statements under the names that this one's will have.
        driver = new_session(self._engine)
        driver.autocommit = True
        if not driver.pooled:
            driver.execute(setting("lock_timeout", LOCK_TIMEOUT))
        return driver


class _Session(psycopg.AsyncConnection[Any]):
    """An asynchronous connection over the same session as `bounded`, whose limits it keeps."""

    def __init__(self, bounded: Bounded) -> None:
        super().__init__(bounded.pgconn)
        self.bounded = bounded
        self.prepare_threshold = bounded.prepare_threshold
        self._limits = {**bounded.limits, "lock_timeout": LOCK_TIMEOUT} if bounded.pooled else {}
        """Settings with which each transaction begins, if nothing may stay in the session."""

    @asynccontextmanager
    async def pipeline(self) -> AsyncIterator[psycopg.AsyncPipeline]:
        """Send the statements of the block at once."""
        if self._pipeline is None:
            self._pipeline = AsyncPipeline(self)
        async with super().pipeline() as pipeline:
            yield pipeline

    async def wait(self, gen: PQGen[T], interval: float = 0.1, timeout: float | None = None) -> T:  # noqa: ARG002
        """Take the steps of `gen`, and wait for the server as long as `Bounded.wait` does.

        psycopg's own waits in a task for each step, up to Python 3.11, which would be a tenth of a request's time.
        """
        loop, seconds = asyncio.get_running_loop(), self.bounded.answer_timeout
        ends = math.inf if seconds is None else loop.time() + seconds
        try:
            wanted = next(gen)
            while True:
                if not (ready := await self._ready(wanted, ends)):
                    self.pgconn.finish()
                    raise NoAnswer(f"timeout: Postgres has not answered for {seconds:g} s")
                wanted = gen.send(ready)
        except StopIteration as end:
            answer: T = end.value
            return answer
        except asyncio.CancelledError:
            # It is in the middle of a statement, so it cannot be used any more.
            self.pgconn.finish()
            raise
        except psycopg.Error as error:
            if error.diag.message_primary:
                error.args = (error.diag.message_primary,)
            raise

    async def _ready(self, wanted: Wait, ends: float) -> Ready | int:
        """Return what the socket is ready for; 0: for nothing until `ends`."""
        loop, socket = asyncio.get_running_loop(), self.pgconn.socket
        woken: asyncio.Future[Ready | int] = loop.create_future()

        def wake(ready: Ready | int) -> None:
            if not woken.done():
                woken.set_result(ready)

        timer = None if ends == math.inf else loop.call_at(ends, wake, 0)
        try:
            if wanted & Wait.R:
                loop.add_reader(socket, wake, Ready.R)
            if wanted & Wait.W:
                loop.add_writer(socket, wake, Ready.W)
            return await woken
        finally:
            loop.remove_reader(socket)
            loop.remove_writer(socket)
            if timer is not None:
                timer.cancel()

    async def execute_all(self, statements: list[tuple[str, Statement]]) -> list[list[tuple[Any, ...]]]:
        """Execute statements as one transaction, and return the rows of each."""
        if len(statements) == 1 and not self._limits:
            ((text, one),) = statements
            return [await (await self.execute(text, one.values)).fetchall()]
        # A pipeline is one transaction anyway; only local settings need a BEGIN.
        try:
            async with self.pipeline():
                for text in [query("begin"), *local_settings(self._limits)] if self._limits else ():
                    await self.execute(text)
                cursors = [await self.execute(text, one.values) for text, one in statements]
                if self._limits:
                    await self.execute(query("commit"))
        except psycopg.Error:
            if self.pgconn.transaction_status == TransactionStatus.INERROR:
                await self.rollback()
            raise
        return [await cursor.fetchall() for cursor in cursors]
