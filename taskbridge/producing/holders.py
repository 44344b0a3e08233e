"""Whoever holds the transaction: which connections a producer may pass, and what is done with each.

| connection | taken by | an event after the commit |
| --- | --- | --- |
| none | both | at once, since each statement is its own transaction |
| SQLAlchemy: Connection, Session, scoped_session | `record`, `notify` | when its outermost transaction has committed |
| SQLAlchemy: AsyncConnection, AsyncSession, async_scoped_session | `arecord`, `anotify` | the same |
| Django's | `record`, `notify` | by its `on_commit`; refused where that is not allowed |
| psycopg: Connection | `record` | refused: it tells nobody of its commit |
| psycopg: AsyncConnection; asyncpg: any | `arecord` | refused, for the same reason |

Django and asyncpg are not imported. A connection of Django's is told by its attributes, others by classes of what
is loaded already.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine
from functools import cache
from typing import Any, Final, Literal, Protocol, TypeVar
from weakref import WeakKeyDictionary

import psycopg
from celery import Celery
from psycopg.rows import tuple_row
from sqlalchemy import Connection, TextClause, Transaction, text
from sqlalchemy.exc import UnboundExecutionError

from taskbridge.common.names import check_tenant
from taskbridge.common.server_errors import loaded_class, translated_errors
from taskbridge.errors import InvalidConnection, InvalidInput
from taskbridge.process.runtime import Runtime, runtime_of
from taskbridge.producing.notify import Event, Events, anotify_quietly, merged, notify_quietly
from taskbridge.store import Statement, Writing, awritten, fetching, written
from taskbridge.store.queries import query

__all__ = [
    "AfterCommit",
    "Holder",
    "OnHolder",
    "event_alone",
    "event_of",
    "holder_of",
    "in_coroutine",
    "notify_after_commit",
    "wants_event",
]

R = TypeVar("R")
H = TypeVar("H", bound="Holder")

AfterCommit = Literal["after commit"]
"""When a producer may ask for an event."""
AFTER_COMMIT: Final[AfterCommit] = "after commit"

_KINDS: Final = (
    "a Connection, Session, AsyncConnection or AsyncSession of SQLAlchemy, a connection of psycopg or asyncpg, or "
    "Django's (`django.db.connection`), to the database of TASKBRIDGE_POSTGRES_URL"
)
_PLACE: Final = re.compile(r"%\((\w+)\)[sb]")


class Holder(Protocol):
    """A connection that a producer passed."""

    @property
    def silence(self) -> str:
        """Why it tells nobody of its commit; empty where it does."""

    def after_commit(self, app: Celery, events: Events) -> None:
        """Send events, each once, when the transaction has committed; at once where there is none."""


class Fetching(Holder, Protocol):
    """One that is used by calls."""

    def fetch(self, statement: Statement) -> list[Any]:
        """Run a statement and return the first column of its rows."""


def wants_event(notify: object) -> bool:
    """Return whether a producer asked for an event after the commit.

    Raises:
        InvalidInput: it is neither None nor "after commit".
    """
    if notify is not None and notify != AFTER_COMMIT:
        raise InvalidInput(
            f"notify is {notify!r}", f"pass {AFTER_COMMIT!r}, or leave it out and notify when you have committed"
        )
    return notify is not None


def holder_of(runtime: Runtime, connection: object, *, tells: bool = False) -> Fetching:
    """Return the holder that a connection is, one that `tells` of its commit if that is needed; None: the runtime's.

    Raises:
        InvalidConnection: it is no connection that can hold records, one for coroutines, or does not tell.
    """
    if _is_session(connection):
        connection = _connection_of(connection)
    holder: Fetching
    if connection is None:
        holder = _Own(runtime)
    elif isinstance(connection, Connection):
        holder = _OfSQLAlchemy(connection, runtime)
    elif isinstance(connection, psycopg.Connection):
        holder = _OfPsycopg(connection, runtime)
    elif _is_of_django(connection):
        holder = _OfDjango(connection, runtime)
    elif _is_for_greenlets(connection) or _is_for_coroutines(connection):
        raise InvalidConnection(f"{_named(connection)} is for coroutines: await `arecord`, `anotify` and the like")
    else:
        raise _no_connection(connection)
    return _checked(holder, connection, tells=tells)


OnHolder = Callable[[Holder], Writing[R]]
"""What is done on a producer's connection, once that is known."""


async def in_coroutine(runtime: Runtime, connection: object, steps: OnHolder[R], *, tells: bool = False) -> R:
    """Run the statements of `steps` in a coroutine, on a connection for coroutines; None: on the runtime's own.

    Raises:
        InvalidConnection: as `holder_of`, or it is not for coroutines.
    """

    def run(given: object) -> R:
        holder = holder_of(runtime, given, tells=tells)
        return written(steps(holder), holder.fetch)

    if connection is None:
        return await asyncio.to_thread(run, None)
    if _is_for_greenlets(connection):
        through: Any = connection
        if _is_any(connection, "sqlalchemy.ext.asyncio", "async_scoped_session"):
            through = through()
        result: R = await through.run_sync(run)
        return result
    if _is_for_coroutines(connection):
        kind = _OfAsyncPsycopg if isinstance(connection, psycopg.AsyncConnection) else _OfAsyncpg
        holder = _checked(kind(connection, runtime), connection, tells=tells)
        return await awritten(steps(holder), holder.afetch)
    # By its class: a Session would connect, and the event loop would stand still meanwhile.
    if _is_session(connection) or isinstance(connection, (Connection, psycopg.Connection)) or _is_of_django(connection):
        raise InvalidConnection(f"{_named(connection)} is not for coroutines", "call `record`, `notify` and the like")
    raise _no_connection(connection)


def event_alone(app: Celery, events: Events) -> OnHolder[None]:
    """Write nothing; send events after the commit."""

    def steps(holder: Holder) -> Writing[None]:
        holder.after_commit(app, events)
        yield from ()

    return steps


def notify_after_commit(app: Celery, tenant: str, pipeline: str, connection: object) -> None:
    """Notify when the transaction of a connection has committed.

    Raises: as `taskbridge.notify`.
    """
    runtime = runtime_of(app)
    with translated_errors():
        holder = holder_of(runtime, connection, tells=True)
        written(event_alone(app, event_of(runtime, tenant, pipeline))(holder), holder.fetch)


def event_of(runtime: Runtime, tenant: str, pipeline: str) -> dict[Event, int | None]:
    """Return one event.

    Raises: InvalidName, UnknownPipeline as `taskbridge.notify`.
    """
    return {(runtime.pipelines[pipeline].name, check_tenant(tenant)): None}


def _checked(holder: H, connection: object, *, tells: bool) -> H:
    if tells and holder.silence:
        raise InvalidConnection(
            f"{_named(connection)} {holder.silence}, so there can be no event after it: notify when you have "
            "committed, by `notify_event.delay(tenant)` or `await anotify(tenant)`, or leave it to the workers, which "
            "find the records all the same"
        )
    return holder


class _Own:
    """The runtime's pool, where each statement is its own transaction."""

    silence = ""

    def __init__(self, runtime: Runtime) -> None:
        runtime.check_owner_once()
        self.fetch = fetching(runtime.engine)

    def after_commit(self, app: Celery, events: Events) -> None:
        notify_quietly(app, events)


class _OfSQLAlchemy:
    """A connection of SQLAlchemy, with any driver of Postgres; also what `run_sync` gives."""

    silence = ""

    def __init__(self, connection: Connection, runtime: Runtime) -> None:
        if connection.dialect.name != "postgresql":
            raise InvalidConnection(f"the connection is to {connection.dialect.name}: pass {_KINDS}")
        self._connection = connection
        self._schema = runtime.settings.schema

    def fetch(self, statement: Statement) -> list[Any]:
        sql = query(statement.query, self._schema)
        if self._connection.dialect.driver in ("psycopg", "psycopg_async"):
            return list(self._connection.exec_driver_sql(sql, dict(statement.values)).scalars())
        return list(self._connection.execute(_as_text(sql), dict(statement.values)).scalars())

    def after_commit(self, app: Celery, events: Events) -> None:
        driver: Any = self._connection.connection.dbapi_connection
        if getattr(driver, "autocommit", False) is True:
            _send(self._connection, app, events)
            return
        if self._connection.get_transaction() is None:
            self._connection.begin()
        innermost, *_ = [_due_after(one) for one in _open_in(self._connection)]
        _add(innermost, app, events)


_Unsent = dict[Celery, dict[Event, int | None]]


def _add(unsent: _Unsent, app: Celery, events: Events) -> None:
    of_app = unsent.setdefault(app, {})
    for one, delay in events.items():
        of_app[one] = merged(of_app[one], delay) if one in of_app else delay


_DUE: Final[WeakKeyDictionary[Transaction, _Unsent]] = WeakKeyDictionary()
"""By transaction, or savepoint, what to send when it has ended well. What is rolled back is forgotten with it."""


def _open_in(connection: Connection) -> list[Transaction]:
    """Return the savepoints and the transaction of a connection, the innermost first."""
    found: list[Transaction] = []
    one: Any = connection.get_nested_transaction()
    while one is not None:
        found.append(one)
        one = one._previous_nested
    outermost = connection.get_transaction()
    return found if outermost is None else [*found, outermost]


def _due_after(transaction: Transaction) -> _Unsent:
    if transaction not in _DUE:
        # SQLAlchemy's own event comes before the commit, which may fail.
        transaction.__class__ = _telling(type(transaction))  # type: ignore[arg-type] # a class can be hashed
        _DUE[transaction] = {}
    return _DUE[transaction]


@cache
def _telling(kind: type[Transaction]) -> type[Transaction]:
    """Return a kind of transaction whose `commit`, which every way of committing calls, sends what is due after it."""

    def commit(self: Any) -> None:
        connection: Connection = self.connection
        around = _open_in(connection)
        kind.commit(self)
        # Savepoints that were open inside of it have ended with it.
        inside = [around.pop(0) for _ in range(around.index(self) + 1)]
        unsent: _Unsent = {}
        for one in inside:
            for app, events in _DUE.pop(one, {}).items():
                _add(unsent, app, events)
        for app, events in unsent.items():
            if around:
                _add(_due_after(around[0]), app, events)
            else:
                _send(connection, app, events)

    return type(kind.__name__, (kind,), {"__slots__": (), "commit": commit, "__doc__": kind.__doc__})


def _send(connection: Connection, app: Celery, events: Events) -> None:
    if connection.dialect.is_async:
        driver: Any = connection.connection.dbapi_connection
        driver.run_async(lambda _: _undisturbed(anotify_quietly(app, events)))
    else:
        notify_quietly(app, events)


CANCELLED_AFTER: Final = 0.1
_LEFT: Final[set[asyncio.Future[Any]]] = set()
"""What is sent although nobody waits for it any more; the event loop itself keeps no hold of it."""


async def _undisturbed(sending: Coroutine[Any, Any, object]) -> None:
    """Wait for what follows a commit. A cancellation meanwhile comes after it.

    For the transaction has ended well, and a `commit` that raised would say that it had not.
    """
    task, left = asyncio.current_task(), asyncio.ensure_future(sending)
    try:
        await asyncio.shield(left)
    except asyncio.CancelledError:
        _LEFT.add(left)
        left.add_done_callback(_LEFT.discard)
        # Not at once: the connection goes back to its pool first, which may wait for the server.
        asyncio.get_running_loop().call_later(CANCELLED_AFTER, _cancel_again, task)


def _cancel_again(task: asyncio.Task[Any] | None) -> None:
    """Cancel a task that is to be cancelled still; a time-out that was left meanwhile has taken its part back."""
    if task is not None and task.cancelling():
        task.uncancel()
        task.cancel()


@cache
def _as_text(sql: str) -> TextClause:
    """Return a query for any driver; it takes no colon after a name."""
    return text(_PLACE.sub(r":\1 ", sql))


class _OfDjango:
    """A connection of Django's to Postgres, or the proxy that `django.db.connection` is."""

    def __init__(self, connection: Any, runtime: Runtime) -> None:
        if connection.vendor != "postgresql":
            raise InvalidConnection(f"the connection is to {connection.vendor}: pass {_KINDS}")
        self._connection = connection
        self._schema = runtime.settings.schema

    @property
    def silence(self) -> str:
        if self._connection.in_atomic_block or self._connection.get_autocommit():
            return ""
        return "has autocommit off and no `atomic` block, where Django calls nobody after a commit"

    def fetch(self, statement: Statement) -> list[Any]:
        # As text, for cursors that bind in the client, which are Django's default.
        sql = _PLACE.sub(r"%(\1)s", query(statement.query, self._schema))
        with self._connection.cursor() as cursor:
            cursor.execute(sql, dict(statement.values))
            return [row[0] for row in cursor.fetchall()]

    def after_commit(self, app: Celery, events: Events) -> None:
        ours = [entry for entry in self._connection.run_on_commit if isinstance(entry[1], _OnCommit)]
        sent = ours[0][1].sent if ours else set()
        if any(hook.called for _, hook, *_ in ours):
            # A test captures hooks: they were called, and stay in the list.
            sent.clear()
        joined = None
        if not _in_test_case(self._connection):
            of_now = [hook for savepoints, hook, *_ in ours if savepoints == set(self._connection.savepoint_ids)]
            joined = next((hook for hook in of_now if not hook.called), None)
        # It may come in savepoints, and each is kept or not by itself.
        hook = joined or _OnCommit(sent)
        _add(hook.unsent, app, events)
        if joined is None:
            self._connection.on_commit(hook)


def _in_test_case(connection: Any) -> bool:
    """Whether a TestCase of Django's holds the transaction, so that a test may capture this hook and not one before."""
    return any(getattr(block, "_from_testcase", False) for block in connection.atomic_blocks)


class _OnCommit:
    """What Django calls after the commit; `sent` is shared by all that were registered in one transaction."""

    def __init__(self, sent: set[tuple[Celery, Event]]) -> None:
        self.sent = sent
        self.unsent: _Unsent = {}
        self.called = False

    def __call__(self) -> None:
        self.called = True
        for app, events in self.unsent.items():
            left = {one: delay for one, delay in events.items() if (app, one) not in self.sent}
            self.sent.update((app, one) for one in left)
            if left:
                notify_quietly(app, left)


class _OfDriver:
    """A driver's own connection, which tells nobody of its commit."""

    silence = "tells nobody of its commit"

    def __init__(self, connection: Any, runtime: Runtime) -> None:
        self._connection = connection
        self._schema = runtime.settings.schema

    def after_commit(self, app: Celery, events: Events) -> None:
        raise NotImplementedError


class _OfPsycopg(_OfDriver):
    """A connection of psycopg."""

    def fetch(self, statement: Statement) -> list[Any]:
        # Whatever rows and cursors the connection was told to make.
        cursor = psycopg.Cursor(self._connection, row_factory=tuple_row)
        cursor.execute(query(statement.query, self._schema), statement.values)
        return [row[0] for row in cursor]


class _OfAsyncPsycopg(_OfDriver):
    """A connection of psycopg for coroutines."""

    async def afetch(self, statement: Statement) -> list[Any]:
        cursor = psycopg.AsyncCursor(self._connection, row_factory=tuple_row)
        await cursor.execute(query(statement.query, self._schema), statement.values)
        return [row[0] async for row in cursor]


class _OfAsyncpg(_OfDriver):
    """A connection of asyncpg, or one of its pool."""

    async def afetch(self, statement: Statement) -> list[Any]:
        names: list[str] = []

        def place(found: re.Match[str]) -> str:
            if found[1] not in names:
                names.append(found[1])
            return f"${names.index(found[1]) + 1}"

        sql = _PLACE.sub(place, query(statement.query, self._schema))
        return [row[0] for row in await self._connection.fetch(sql, *(statement.values[name] for name in names))]


def _connection_of(session: Any) -> object:
    """Return the connection of a Session, which begins its transaction.

    Raises:
        InvalidConnection: it does not know to which database.
    """
    try:
        return session.connection()
    except UnboundExecutionError:
        raise InvalidConnection(
            f"{_named(session)} is bound to databases by its classes alone, and records are of none of these",
            "give it a `bind` too, or pass the connection: `session.connection(bind_arguments={'mapper': Order})`",
        ) from None


def _is_session(connection: object) -> bool:
    return _is_any(connection, "sqlalchemy.orm", "Session", "scoped_session")


def _is_of_django(connection: object) -> bool:
    return all(hasattr(connection, name) for name in ("run_on_commit", "in_atomic_block", "vendor"))


def _is_for_greenlets(connection: object) -> bool:
    """Whether it is one of SQLAlchemy's for coroutines, on which `run_sync` runs what is none."""
    kinds = ("AsyncConnection", "AsyncSession", "async_scoped_session")
    return _is_any(connection, "sqlalchemy.ext.asyncio", *kinds)


def _is_for_coroutines(connection: object) -> bool:
    """Whether it is a driver's own for coroutines."""
    if isinstance(connection, psycopg.AsyncConnection):
        return True
    return _is_any(connection, "asyncpg", "Connection") or _is_any(connection, "asyncpg.pool", "PoolConnectionProxy")


def _is_any(connection: object, module: str, *names: str) -> bool:
    """Whether it is of a class of a library. Of one that was not loaded nobody has an object."""
    return any(isinstance(connection, loaded_class(module, name)) for name in names)


def _no_connection(given: object) -> InvalidConnection:
    return InvalidConnection(f"{_named(given)} is no connection that can hold records", f"pass {_KINDS}")


def _named(connection: object) -> str:
    kind = type(connection)
    return f"`connection`, a {kind.__module__.partition('.')[0]} {kind.__qualname__},"
