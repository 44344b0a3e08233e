"""The kinds of connections that a producer may hold, behind one face; those for coroutines have a loop of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from typing import Any, Final

import asyncpg
import psycopg
from django.db import connections, transaction
from django.db.backends.postgresql.base import DatabaseWrapper
from sqlalchemy import Engine, create_engine, make_url
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from taskbridge.producer.producer import Bridge
from tests.django import settled  # noqa: F401 - before a connection of Django's is made

__all__ = ["KINDS", "TELLING", "Held", "opened"]


class Held:
    """A connection of one kind."""

    connection: Any

    def call(self, bridge: Bridge, name: str, *arguments: Any, **keywords: Any) -> Any:
        """Call what producers call on this connection: `record`, or `arecord` where it is for coroutines."""
        return getattr(bridge, name)(*arguments, connection=self.connection, **keywords)

    def execute(self, statement: str) -> None:
        raise NotImplementedError

    def commit(self) -> None:
        raise NotImplementedError

    def rollback(self) -> None:
        raise NotImplementedError

    def savepoint(self) -> AbstractContextManager[object]:
        """A savepoint that is released at the end of the block, or rolled back where that raises."""
        raise NotImplementedError


class OfSQLAlchemy(Held):
    """A Connection, a Session or a scoped_session: their methods have the same names."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection

    def execute(self, statement: str) -> None:
        given = self.connection
        (given if hasattr(given, "exec_driver_sql") else given.connection()).exec_driver_sql(statement)

    def commit(self) -> None:
        self.connection.commit()

    def rollback(self) -> None:
        self.connection.rollback()

    def savepoint(self) -> AbstractContextManager[object]:
        nested: AbstractContextManager[object] = self.connection.begin_nested()
        return nested


class OfPsycopg(OfSQLAlchemy):
    def execute(self, statement: str) -> None:
        self.connection.execute(statement)

    def savepoint(self) -> AbstractContextManager[object]:
        nested: AbstractContextManager[object] = self.connection.transaction()
        return nested


class OfDjango(Held):
    """A connection in an `atomic` block, which the test ends."""

    def __init__(self, connection: Any) -> None:
        self.connection = connections["default"] = connection
        self._begin()

    def _begin(self) -> None:
        self._atomic = transaction.atomic()
        self._atomic.__enter__()

    def execute(self, statement: str) -> None:
        with self.connection.cursor() as cursor:
            cursor.execute(statement)

    def commit(self) -> None:
        self._atomic.__exit__(None, None, None)
        self._begin()

    def rollback(self) -> None:
        self.connection.set_rollback(True)
        self.commit()

    def savepoint(self) -> AbstractContextManager[object]:
        nested: AbstractContextManager[object] = transaction.atomic()
        return nested


class ForCoroutines(Held):
    """A connection for coroutines, on its loop."""

    def __init__(self, runner: asyncio.Runner, connection: Any) -> None:
        self.run = runner.run
        self.connection = connection

    def call(self, bridge: Bridge, name: str, *arguments: Any, **keywords: Any) -> Any:
        return self.run(getattr(bridge, f"a{name}")(*arguments, connection=self.connection, **keywords))

    def commit(self) -> None:
        self.run(self.connection.commit())

    def rollback(self) -> None:
        self.run(self.connection.rollback())

    def execute(self, statement: str) -> None:
        self.run(self.connection.execute(statement))

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        nested = self._nested()
        self.run(nested.__aenter__())
        try:
            yield
        except BaseException as error:
            self.run(nested.__aexit__(type(error), error, error.__traceback__))
            raise
        self.run(nested.__aexit__(None, None, None))

    def _nested(self) -> Any:
        return self.connection.transaction()


class OfSQLAlchemyForCoroutines(ForCoroutines):
    def execute(self, statement: str) -> None:
        async def execute() -> None:
            given = self.connection
            found = given if hasattr(given, "exec_driver_sql") else await given.connection()
            await found.exec_driver_sql(statement)

        self.run(execute())

    def _nested(self) -> Any:
        return self.connection.begin_nested()


class OfAsyncpg(ForCoroutines):
    """A connection of a pool, in a transaction that the test ends."""

    def __init__(self, runner: asyncio.Runner, connection: Any) -> None:
        super().__init__(runner, connection)
        self._begin()

    def _begin(self) -> None:
        self._transaction = self.connection.transaction()
        self.run(self._transaction.start())

    def commit(self) -> None:
        self.run(self._transaction.commit())
        self._begin()

    def rollback(self) -> None:
        self.run(self._transaction.rollback())
        self._begin()


@contextmanager
def _engine(url: str) -> Iterator[Engine]:
    engine = create_engine(make_url(url).set(drivername="postgresql+psycopg"))
    try:
        yield engine
    finally:
        engine.dispose()


@contextmanager
def connection(url: str) -> Iterator[Held]:
    with _engine(url) as engine, engine.connect() as found:
        yield OfSQLAlchemy(found)


@contextmanager
def session(url: str) -> Iterator[Held]:
    with _engine(url) as engine, Session(engine) as found:
        yield OfSQLAlchemy(found)


@contextmanager
def scoped(url: str) -> Iterator[Held]:
    with _engine(url) as engine:
        found = scoped_session(sessionmaker(engine))
        yield OfSQLAlchemy(found)
        found.remove()


@contextmanager
def of_psycopg(url: str) -> Iterator[Held]:
    with closing(psycopg.connect(url)) as found:
        yield OfPsycopg(found)


@contextmanager
def of_django(url: str) -> Iterator[Held]:
    parsed = make_url(url)
    found = DatabaseWrapper(
        {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": parsed.database,
            "USER": parsed.username,
            "PASSWORD": parsed.password,
            "HOST": parsed.host or parsed.query.get("host"),
            "PORT": parsed.port,
            "TIME_ZONE": None,
            "CONN_MAX_AGE": 0,
            "CONN_HEALTH_CHECKS": False,
            "AUTOCOMMIT": True,
            "ATOMIC_REQUESTS": False,
            "OPTIONS": {},
            "TEST": {"MIRROR": None},
        },
        "default",
    )
    # Other tests of this process have a project with a connection of its own, whose test database is followed.
    own = connections["default"]
    held = OfDjango(found)
    try:
        yield held
    finally:
        held.rollback()
        held._atomic.__exit__(None, None, None)
        found.close()
        connections["default"] = own


def _greenlets(driver: str, kind: Callable[[Any], Any]) -> Callable[[str], AbstractContextManager[Held]]:
    @contextmanager
    def opened(url: str) -> Iterator[Held]:
        with asyncio.Runner() as runner:
            engine = create_async_engine(make_url(url).set(drivername=f"postgresql+{driver}"))
            found = kind(engine)

            async def close() -> None:
                await found.close()
                await engine.dispose()

            if isinstance(found, AsyncConnection):
                runner.run(_started(found))
            try:
                yield OfSQLAlchemyForCoroutines(runner, found)
            finally:
                runner.run(close())

    return opened


async def _started(connection: AsyncConnection) -> None:
    await connection.start()


@contextmanager
def of_psycopg_for_coroutines(url: str) -> Iterator[Held]:
    with asyncio.Runner() as runner:
        found = runner.run(psycopg.AsyncConnection.connect(url))
        try:
            yield ForCoroutines(runner, found)
        finally:
            runner.run(found.close())


@contextmanager
def of_asyncpg(url: str) -> Iterator[Held]:
    async def open_one() -> tuple[Any, Any]:
        pool = await asyncpg.create_pool(url, min_size=1, max_size=1)
        return pool, await pool.acquire()

    with asyncio.Runner() as runner:
        pool, found = runner.run(open_one())
        try:
            yield OfAsyncpg(runner, found)
        finally:
            runner.run(_ended(pool))


async def _ended(pool: Any) -> None:
    pool.terminate()


def _of_task(found: Any) -> Any:
    return async_scoped_session(found, scopefunc=lambda: None)


TELLING: Final[dict[str, Callable[[str], AbstractContextManager[Held]]]] = {
    "Connection": connection,
    "Session": session,
    "scoped_session": scoped,
    "Django": of_django,
    "AsyncConnection, asyncpg": _greenlets("asyncpg", lambda engine: engine.connect()),
    "AsyncConnection, psycopg": _greenlets("psycopg", lambda engine: engine.connect()),
    "AsyncSession, asyncpg": _greenlets("asyncpg", AsyncSession),
    "AsyncSession, psycopg": _greenlets("psycopg", AsyncSession),
    "async_scoped_session": _greenlets("asyncpg", lambda engine: _of_task(lambda: AsyncSession(engine))),
}
"""Those that tell of their commit."""

KINDS: Final = {
    **TELLING,
    "psycopg": of_psycopg,
    "psycopg, async": of_psycopg_for_coroutines,
    "asyncpg": of_asyncpg,
}


def opened(kind: str, url: str) -> AbstractContextManager[Held]:
    """Open a connection of a kind."""
    return KINDS[kind](url)
