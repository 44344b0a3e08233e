"""Transaction adapters: which connections a producer may pass, and how each runs a statement and reports its commit.

| connection | taken by | an event after the commit |
| --- | --- | --- |
| none | both | at once, since each statement is its own transaction |
| SQLAlchemy: Connection, Session, scoped_session | `record`, `notify` | when its outermost transaction has committed |
| SQLAlchemy: AsyncConnection, AsyncSession, async_scoped_session | `arecord`, `anotify` | the same |
| Django's | `record`, `notify` | by its `on_commit`; refused where that is not allowed |
| psycopg: Connection | `record` | refused: nothing reports its commit |
| psycopg: AsyncConnection; asyncpg: any | `arecord` | refused, for the same reason |

Django and asyncpg are not imported. A connection of Django's is recognized by its attributes, others by the classes
that are loaded already.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable
from functools import cache, partial
from typing import Any, Final, NamedTuple, TypeGuard, TypeVar
from weakref import WeakKeyDictionary

import psycopg
from celery import Celery
from psycopg.rows import tuple_row
from sqlalchemy import Connection, TextClause, Transaction, text
from sqlalchemy.exc import UnboundExecutionError

from taskbridge.common.server_errors import loaded_class, translated_errors
from taskbridge.errors import InvalidConnection
from taskbridge.process.runtime import Runtime, runtime_of
from taskbridge.producer.notify import Event, Events, logged, merge, send_committed
from taskbridge.store import Statement, execute
from taskbridge.store.queries import query

__all__ = ["Adapter", "adapter_of", "anotify_after_commit", "async_fetch_of", "in_coroutine", "notify_after_commit"]

R = TypeVar("R")

_KINDS: Final = (
    "a SQLAlchemy Connection, Session, AsyncConnection or AsyncSession, a psycopg or asyncpg connection, or "
    "Django's (`django.db.connection`), to the database of TASKBRIDGE_POSTGRES_URL"
)
_NEVER: Final = "does not report its commit"
_PARAMETER: Final = re.compile(r"%\((\w+)\)[sb]")

_SESSIONS: Final = (("sqlalchemy.orm", "Session"), ("sqlalchemy.orm", "scoped_session"))
_GREENLETS: Final = tuple(
    ("sqlalchemy.ext.asyncio", name) for name in ("AsyncConnection", "AsyncSession", "async_scoped_session")
)
"""SQLAlchemy's for coroutines, whose `run_sync` calls ordinary functions."""
_ASYNC_DRIVERS: Final = (
    ("psycopg", "AsyncConnection"),
    ("asyncpg", "Connection"),
    ("asyncpg.pool", "PoolConnectionProxy"),
)
"""The drivers' own for coroutines."""


class Adapter(NamedTuple):
    """A producer's connection, as far as records and events need it.

    `fetch` runs a statement and returns the first column of its rows. `after_commit` sends events, each once, when the
    transaction has committed; at once if there is none.
    """

    fetch: Callable[[Statement], list[Any]]
    after_commit: Callable[[Celery, Events], None]


def adapter_of(runtime: Runtime, connection: object, *, notifies: bool = False) -> Adapter:
    """Return the adapter of a connection; None: the runtime's own pool.

    Raises:
        InvalidConnection: it cannot write records, is for coroutines, or does not report its commit although the
            caller `notifies` after it.
    """
    if _is_any(connection, _SESSIONS):
        connection = _connection_of(connection)
    schema = runtime.settings.schema
    if connection is None:
        # Each statement is its own transaction.
        runtime.check_owner_once()
        return Adapter(partial(execute, runtime.engine), send_committed)
    if isinstance(connection, Connection):
        _check_postgres(connection.dialect.name)
        return Adapter(partial(_fetch_by_sqlalchemy, connection, schema), partial(_after_sqlalchemy, connection))
    if isinstance(connection, psycopg.Connection):
        _check_reports(connection, notifies, _NEVER)
        refuse = partial(_check_reports, connection, True, _NEVER)
        return Adapter(partial(_fetch_by_psycopg, connection, schema), lambda *_: refuse())
    if _is_django(connection):
        _check_postgres(connection.vendor)
        _check_reports(connection, notifies, _why_django_is_silent(connection))
        return Adapter(partial(_fetch_by_django, connection, schema), partial(_after_django, connection))
    if _is_any(connection, (*_GREENLETS, *_ASYNC_DRIVERS)):
        raise InvalidConnection(f"{_named(connection)} is for coroutines: await `arecord`, `anotify` and the like")
    raise _unusable(connection)


def async_fetch_of(
    runtime: Runtime, connection: object, *, notifies: bool = False
) -> Callable[[Statement], Awaitable[list[Any]]] | None:
    """Return the `fetch` of a driver's own connection for coroutines; None: it is of another kind.

    Raises:
        InvalidConnection: as `adapter_of`.
    """
    if not _is_any(connection, _ASYNC_DRIVERS):
        return None
    _check_reports(connection, notifies, _NEVER)
    fetch = _fetch_by_async_psycopg if isinstance(connection, psycopg.AsyncConnection) else _fetch_by_asyncpg
    return partial(fetch, connection, runtime.settings.schema)


async def in_coroutine(connection: object, call: Callable[[object], R]) -> R:
    """Call a function for ordinary connections with what SQLAlchemy runs below an `await`; None: in a thread.

    Raises:
        InvalidConnection: the connection is not for coroutines.
    """
    if connection is None:
        return await asyncio.to_thread(call, None)
    if _is_any(connection, _GREENLETS):
        through: Any = connection
        if isinstance(connection, loaded_class("sqlalchemy.ext.asyncio", "async_scoped_session")):
            through = through()
        result: R = await through.run_sync(call)
        return result
    # By its class: a Session would connect, which would block the event loop.
    is_ordinary = _is_any(connection, _SESSIONS) or isinstance(connection, (Connection, psycopg.Connection))
    if is_ordinary or _is_django(connection):
        raise InvalidConnection(f"{_named(connection)} is not for coroutines", "call `record`, `notify` and the like")
    raise _unusable(connection)


def notify_after_commit(app: Celery, events: Events, connection: object) -> None:
    """Send events when the transaction of a connection has committed.

    Raises:
        InvalidConnection: as `adapter_of`.
    """
    with translated_errors():
        adapter_of(runtime_of(app), connection, notifies=True).after_commit(app, events)


async def anotify_after_commit(app: Celery, events: Events, connection: object) -> None:
    """Do in a coroutine what `notify_after_commit` does, on a connection for coroutines."""
    with translated_errors():
        async_fetch_of(runtime_of(app), connection, notifies=True)
        await in_coroutine(connection, partial(notify_after_commit, app, events))


# How each driver runs a statement.


def _fetch_by_sqlalchemy(connection: Connection, schema: str, statement: Statement) -> list[Any]:
    """Use any driver of Postgres, also below `run_sync`."""
    sql, values = query(statement.query, schema), dict(statement.values)
    if connection.dialect.driver in ("psycopg", "psycopg_async"):
        return list(connection.exec_driver_sql(sql, values).scalars())
    return list(connection.execute(_as_text(sql), values).scalars())


@cache
def _as_text(sql: str) -> TextClause:
    """Return a query for any driver; there must be no colon after a parameter name."""
    return text(_PARAMETER.sub(r":\1 ", sql))


def _fetch_by_django(connection: Any, schema: str, statement: Statement) -> list[Any]:
    # As text, for cursors that bind in the client, which are Django's default.
    sql = _PARAMETER.sub(r"%(\1)s", query(statement.query, schema))
    with connection.cursor() as cursor:
        cursor.execute(sql, dict(statement.values))
        return [row[0] for row in cursor.fetchall()]


def _fetch_by_psycopg(connection: psycopg.Connection[Any], schema: str, statement: Statement) -> list[Any]:
    # Whatever rows and cursors the connection was configured to make.
    cursor = psycopg.Cursor(connection, row_factory=tuple_row)
    return [row[0] for row in cursor.execute(query(statement.query, schema), statement.values)]


async def _fetch_by_async_psycopg(connection: Any, schema: str, statement: Statement) -> list[Any]:
    cursor = psycopg.AsyncCursor(connection, row_factory=tuple_row)
    await cursor.execute(query(statement.query, schema), statement.values)
    return [row[0] async for row in cursor]


async def _fetch_by_asyncpg(connection: Any, schema: str, statement: Statement) -> list[Any]:
    sql = query(statement.query, schema)
    names = list(dict.fromkeys(_PARAMETER.findall(sql)))
    numbered = _PARAMETER.sub(lambda parameter: f"${names.index(parameter[1]) + 1}", sql)
    return [row[0] for row in await connection.fetch(numbered, *(statement.values[name] for name in names))]


# Events after the commit of a SQLAlchemy transaction.

_Unsent = dict[Celery, dict[Event, int | None]]

_DUE: Final[WeakKeyDictionary[Transaction, _Unsent]] = WeakKeyDictionary()
"""By transaction or savepoint: what to send when it has committed. What is rolled back is forgotten with it."""


def _after_sqlalchemy(connection: Connection, app: Celery, events: Events) -> None:
    driver: Any = connection.connection.dbapi_connection
    if getattr(driver, "autocommit", False) is True:
        _send(connection, app, events)
        return
    if connection.get_transaction() is None:
        connection.begin()
    # Each of them has to report its commit, as that ends those inside of it.
    innermost, *_ = [_due_after(transaction) for transaction in _open_in(connection)]
    _add(innermost, app, events)


def _add(unsent: _Unsent, app: Celery, events: Events) -> None:
    merge(unsent.setdefault(app, {}), events)


def _open_in(connection: Connection) -> list[Transaction]:
    """Return the savepoints and the transaction of a connection, the innermost first."""
    found: list[Transaction] = []
    transaction: Any = connection.get_nested_transaction()
    while transaction is not None:
        found.append(transaction)
        transaction = transaction._previous_nested
    outermost = connection.get_transaction()
    return found if outermost is None else [*found, outermost]


def _due_after(transaction: Transaction) -> _Unsent:
    if transaction not in _DUE:
        # SQLAlchemy's own event comes before the commit, which may fail.
        transaction.__class__ = _reporting(type(transaction))  # type: ignore[arg-type] # a class can be hashed
        _DUE[transaction] = {}
    return _DUE[transaction]


@cache
def _reporting(kind: type[Transaction]) -> type[Transaction]:
    """Return a kind of transaction whose `commit`, which every way of committing calls, sends what is due after it."""

    def commit(self: Any) -> None:
        connection: Connection = self.connection
        enclosing = _open_in(connection)
        kind.commit(self)
        # Savepoints that were open inside of it have ended with it.
        unsent: _Unsent = {}
        for ended in [enclosing.pop(0) for _ in range(enclosing.index(self) + 1)]:
            for app, events in _DUE.pop(ended, {}).items():
                _add(unsent, app, events)
        for app, events in unsent.items():
            if enclosing:
                _add(_due_after(enclosing[0]), app, events)
            else:
                _send(connection, app, events)

    return type(kind.__name__, (kind,), {"__slots__": (), "commit": commit, "__doc__": kind.__doc__})


def _send(connection: Connection, app: Celery, events: Events) -> None:
    if not connection.dialect.is_async:
        send_committed(app, events)
        return
    # In a thread, without waiting for it: the event loop is not blocked, and a cancellation in the meantime cannot make
    # a successful commit look like a failed one.
    runtime = runtime_of(app)
    with logged(runtime, events):
        sending = runtime.send_in(runtime.event_threads, send_committed, app, events)
        if runtime.eager:
            # Tests expect the runs to be over.
            driver: Any = connection.connection.dbapi_connection
            driver.run_async(lambda _: asyncio.wrap_future(sending))


# Events after the commit of a Django transaction.


def _why_django_is_silent(connection: Any) -> str:
    """Return why a connection of Django's does not report its commit; empty if it does."""
    if connection.in_atomic_block or connection.get_autocommit():
        return ""
    return "has autocommit off and no `atomic` block, so Django runs no hooks after a commit"


def _after_django(connection: Any, app: Celery, events: Events) -> None:
    hooks = [entry for entry in connection.run_on_commit if isinstance(entry[1], _OnCommit)]
    sent = hooks[0][1].sent if hooks else set()
    if any(hook.called for _, hook, *_ in hooks):
        # A test captures hooks: they were called, and stay in the list.
        sent.clear()
    joined = None
    if not any(getattr(block, "_from_testcase", False) for block in connection.atomic_blocks):
        # In a TestCase of Django's a test may capture this hook, and not one before.
        savepoints = set(connection.savepoint_ids)
        joined = next((hook for of, hook, *_ in hooks if of == savepoints and not hook.called), None)
    # An event may be in several savepoints, each of which is kept or not by itself.
    hook = joined or _OnCommit(sent)
    _add(hook.unsent, app, events)
    if joined is None:
        connection.on_commit(hook)


class _OnCommit:
    """What Django calls after the commit; `sent` is shared by all that were registered in one transaction."""

    def __init__(self, sent: set[tuple[Celery, Event]]) -> None:
        self.sent = sent
        self.unsent: _Unsent = {}
        self.called = False

    def __call__(self) -> None:
        self.called = True
        for app, events in self.unsent.items():
            unsent = {event: delay for event, delay in events.items() if (app, event) not in self.sent}
            self.sent.update((app, event) for event in unsent)
            if unsent:
                send_committed(app, unsent)


# Which connections there are.


def _connection_of(session: Any) -> object:
    """Return the connection of a Session, which begins its transaction.

    Raises:
        InvalidConnection: it does not know to which database.
    """
    try:
        return session.connection()
    except UnboundExecutionError:
        raise InvalidConnection(
            f"{_named(session)} is bound to databases only for single classes, and has no default database",
            "give it a `bind` too, or pass the connection: `session.connection(bind_arguments={'mapper': Order})`",
        ) from None


def _is_django(connection: object) -> TypeGuard[Any]:
    return all(hasattr(connection, name) for name in ("run_on_commit", "in_atomic_block", "vendor"))


def _is_any(connection: object, classes: Iterable[tuple[str, str]]) -> bool:
    """Whether it is of a class of a library, given by module and name. If that is not loaded, nothing is."""
    return any(isinstance(connection, loaded_class(module, name)) for module, name in classes)


def _check_postgres(database: str) -> None:
    if database != "postgresql":
        raise InvalidConnection(f"the connection is to {database}: pass {_KINDS}")


def _check_reports(connection: object, notifies: bool, why_silent: str) -> None:
    if notifies and why_silent:
        raise InvalidConnection(
            f"{_named(connection)} {why_silent}, so TaskBridge cannot send the event after it: notify after your "
            "commit with `notify_event.delay(tenant)` or `await anotify(tenant)`, or leave it to the workers, which "
            "find the records without an event"
        )


def _unusable(connection: object) -> InvalidConnection:
    return InvalidConnection(f"{_named(connection)} is not a connection that can write records", f"pass {_KINDS}")


def _named(connection: object) -> str:
    kind = type(connection)
    return f"`connection`, a {kind.__module__.partition('.')[0]} {kind.__qualname__},"
