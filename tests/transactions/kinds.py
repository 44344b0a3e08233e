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
    """A connection of SQLAlchemy; with a `runner`, one for coroutines."""

    def __init__(self, connection: Any, runner: asyncio.Runner | None = None) -> None:
        self.connection = connection
        self.is_for_coroutines = runner is not None
        self.run: Callable[[Any], Any] = runner.run if runner else lambda result: result

    def call(self, bridge: Bridge, name: str, *arguments: Any, **keywords: Any) -> Any:
        """Call what producers call on this connection: `record`, or `arecord` where it is for coroutines."""
        verb = getattr(bridge, f"a{name}" if self.is_for_coroutines else name)
        return self.run(verb(*arguments, connection=self.connection, **keywords))

    def execute(self, statement: str) -> None:
        given = self.connection
        found = given if hasattr(given, "exec_driver_sql") else self.run(given.connection())
        self.run(found.exec_driver_sql(statement))

    def commit(self) -> None:
        self.run(self.connection.commit())

    def rollback(self) -> None:
        self.run(self.connection.rollback())

    def nested(self) -> Any:
        return self.connection.begin_nested()

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """A savepoint that is released at the end of the block, or rolled back where that raises."""
        nested = self.nested()
        if not self.is_for_coroutines:
            with nested:
                yield
            return
        self.run(nested.__aenter__())
        try:
            yield
        except BaseException as error:
            self.run(nested.__aexit__(type(error), error, error.__traceback__))
            raise
        self.run(nested.__aexit__(None, None, None))


class OfDriver(Held):
    """A connection of psycopg."""

    def execute(self, statement: str) -> None:
        self.run(self.connection.execute(statement))

    def nested(self) -> Any:
        return self.connection.transaction()


class OfAsyncpg(OfDriver):
    """A connection of a pool, in a transaction that the test ends."""

    def __init__(self, connection: Any, runner: asyncio.Runner) -> None:
        super().__init__(connection, runner)
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


class OfDjango(Held):
    """A connection in an `atomic` block, which the test ends."""

    def __init__(self, connection: Any) -> None:
        super().__init__(connection)
        connections["default"] = connection
        self._begin()

    def _begin(self) -> None:
        self._atomic = transaction.atomic()
        self._atomic.__enter__()

    def execute(self, statement: str) -> None:
        with self.connection.cursor() as cursor:
            cursor.execute(statement)

    def commit(self) -> None:
        self.end()
        self._begin()

    def rollback(self) -> None:
        self.connection.set_rollback(True)
        self.commit()

    def end(self) -> None:
        self._atomic.__exit__(None, None, None)

    def nested(self) -> Any:
        return transaction.atomic()


def _sync(kind: Callable[[Engine], Any]) -> Callable[[str], AbstractContextManager[Held]]:
    @contextmanager
    def opened(url: str) -> Iterator[Held]:
        engine = create_engine(make_url(url).set(drivername="postgresql+psycopg"))
        found = kind(engine)
        yield Held(found)
        found.close()
        engine.dispose()

    return opened


@contextmanager
def of_psycopg(url: str) -> Iterator[Held]:
    with closing(psycopg.connect(url)) as found:
        yield OfDriver(found)


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
        held.end()
        found.close()
        connections["default"] = own


def _greenlets(driver: str, kind: Callable[[Any], Any]) -> Callable[[str], AbstractContextManager[Held]]:
    @contextmanager
    def opened(url: str) -> Iterator[Held]:
        with asyncio.Runner() as runner:
            engine = create_async_engine(make_url(url).set(drivername=f"postgresql+{driver}"))
            found = kind(engine)
            if isinstance(found, AsyncConnection):
                runner.run(_result_of(found))
            yield Held(found, runner)
            runner.run(found.close())
            runner.run(engine.dispose())

    return opened


async def _result_of(awaitable: Any) -> Any:
    return await awaitable


@contextmanager
def of_psycopg_for_coroutines(url: str) -> Iterator[Held]:
    with asyncio.Runner() as runner:
        found = runner.run(psycopg.AsyncConnection.connect(url))
        yield OfDriver(found, runner)
        runner.run(found.close())


@contextmanager
def of_asyncpg(url: str) -> Iterator[Held]:
    with asyncio.Runner() as runner:
        pool = runner.run(_result_of(asyncpg.create_pool(url, min_size=1, max_size=1)))
        yield OfAsyncpg(runner.run(_result_of(pool.acquire())), runner)
        pool.terminate()


def _of_task(found: Any) -> Any:
    return async_scoped_session(found, scopefunc=lambda: None)


TELLING: Final[dict[str, Callable[[str], AbstractContextManager[Held]]]] = {
    "Connection": _sync(lambda engine: engine.connect()),
    "Session": _sync(Session),
    "scoped_session": _sync(lambda engine: scoped_session(sessionmaker(engine))),
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
