"""The pool of connections to Postgres, and how long each of them waits for an answer."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Any, Final, TypeVar

import psycopg
from psycopg.abc import PQGen
from psycopg.errors import _WaitTimeout
from sqlalchemy import URL, Connection, Engine, QueuePool, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, DisconnectionError

from taskbridge.common.names import DEFAULT_SCHEMA
from taskbridge.errors import ConfigurationError, Unavailable
from taskbridge.store.queries import SCHEMA_OPTION

__all__ = ["GRACE", "OLDEST_POSTGRES", "Bounded", "NoAnswer", "check_version", "connect", "distrust", "within"]

T = TypeVar("T")

_DECODER: Final = json.JSONDecoder()

OLDEST_POSTGRES: Final = 15
"""The oldest major version that the tests ran on, and the oldest that its makers still mend."""

GRACE: Final = 1.0
"""Seconds that a process waits longer than Postgres may work: an error says more than a lost connection."""


class NoAnswer(psycopg.OperationalError):
    """Postgres did not answer in time, so the connection was given up; what became of the statement is unknown."""


class Bounded(psycopg.Connection[Any]):
    """A connection that waits `answer_timeout` seconds for an answer, and is given up then; None: any time.

    Postgres cannot end a statement itself when its process has stopped, or when the route to it was dropped and the
    socket stays open.
    """

    answer_timeout: float | None = None
    own_answer_timeout: float | None = None
    """What `answer_timeout` is whenever the connection leaves the pool."""
    opened: float = -math.inf
    """When it was about to be opened, by the process's monotonic clock."""

    def wait(self, gen: PQGen[T], interval: float = 0.1, timeout: float | None = None) -> T:
        """Wait as psycopg does.

        An error's text is what Postgres says first. The rest (DETAIL, CONTEXT, the line of the statement) quotes rows
        and parameters, which are documents; whoever may see those finds them in the error's `diag`.

        Raises:
            NoAnswer: it took longer than `answer_timeout`; the connection is closed. A `timeout` is the caller's own
                affair: silence is no fault while one waits for notifications.
        """
        try:
            return super().wait(gen, interval, self.answer_timeout if timeout is None else timeout)
        except _WaitTimeout:
            if timeout is not None:
                raise
            self.pgconn.finish()
            raise NoAnswer(f"timeout: Postgres has not answered for {self.answer_timeout:g} s") from None
        except psycopg.Error as error:
            if error.diag.message_primary:
                error.args = (error.diag.message_primary,)
            raise


class _Sessions(QueuePool):
    """A pool that lends no session that was opened before `distrusted`, by the process's monotonic clock."""

    distrusted: float = -math.inf


def distrust(engine: Engine) -> None:
    """Lend no session any more that is open by now; whoever uses one at this moment keeps it until the end.

    Where one session broke or gives no answer, others often do too: they share a server and a route. `Engine.dispose`
    would never close those that are in use.
    """
    if isinstance(engine.pool, _Sessions):
        engine.pool.distrusted = monotonic()
    else:
        engine.dispose()


def connect(
    url: str, schema: str = DEFAULT_SCHEMA, *, statement_timeout: float | None = None, **options: Any
) -> Engine:
    """Return an engine for `url`, with the tables in `schema`; nothing is connected before it is used.

    Any `postgresql://` or `postgres://` URL is taken, with psycopg as its driver. Further options go to
    `sqlalchemy.create_engine`. An error's text has no parameters, for these are documents.

    Args:
        url: where Postgres is; its own parameters win, a statement_timeout among its `options` too.
        schema: the Postgres schema of the tables.
        statement_timeout: seconds for each statement; None: any time.
        options: of `sqlalchemy.create_engine`.

    Raises:
        ConfigurationError: the URL cannot be read.
    """
    try:
        parsed = make_url(url).set(drivername="postgresql+psycopg")
    except (ArgumentError, ValueError):
        raise ConfigurationError(
            "TASKBRIDGE_POSTGRES_URL cannot be read: write postgresql://user:password@host:port/database, "
            "with special characters percent-encoded"
        ) from None
    engine = create_engine(
        parsed,
        # As many connections as there are threads that work, however many the pool of the worker has.
        max_overflow=-1,
        connect_args={"application_name": "taskbridge", **_of_the_socket(parsed, statement_timeout)},
        json_deserializer=_document,
        hide_parameters=True,
        execution_options={SCHEMA_OPTION: schema},
        poolclass=_Sessions,
        **options,
    )

    def open_one(_dialect: Any, _record: Any, arguments: Any, parameters: Any) -> Bounded:
        return _open(statement_timeout, *arguments, **parameters)

    def lend(connection: Any, _record: Any, _proxy: Any) -> None:
        pool = engine.pool
        if isinstance(pool, _Sessions) and isinstance(connection, Bounded) and connection.opened <= pool.distrusted:
            raise DisconnectionError  # the pool closes it and opens another

    event.listen(engine, "do_connect", open_one)
    event.listen(engine, "checkout", lend)
    event.listen(engine, "checkin", _as_it_was_opened)
    return engine


def _as_it_was_opened(connection: Any, _record: Any) -> None:
    """Let the next user wait as long as any: whoever closed the connection may have had another limit."""
    if isinstance(connection, Bounded):
        connection.answer_timeout = connection.own_answer_timeout


def _of_the_socket(url: URL, statement_timeout: float | None) -> dict[str, Any]:
    """Return how a dead peer is noticed while a connection lies in the pool, or a long statement runs."""
    values: dict[str, Any] = {
        "connect_timeout": 5,
        "keepalives_idle": 10,
        "keepalives_interval": 5,
        "keepalives_count": 3,
        "tcp_user_timeout": round((statement_timeout or 25) * 1000),
    }
    return {name: value for name, value in values.items() if name not in url.query}


def _open(statement_timeout: float | None, *arguments: Any, **parameters: Any) -> Bounded:
    opened = monotonic()
    connection = Bounded.connect(*arguments, **parameters)
    connection.opened = opened
    if statement_timeout is None:
        return connection
    connection.autocommit = True
    # As Postgres reads the name: in any case, and a hyphen is an underscore.
    if "statement_timeout" in parameters.get("options", "").lower().replace("-", "_"):
        found = connection.execute("SELECT setting FROM pg_settings WHERE name = 'statement_timeout'").fetchone()
        statement_timeout = int(found[0]) / 1000 if found else 0
    else:
        connection.execute(f"SET statement_timeout = {round(statement_timeout * 1000)}")
    connection.autocommit = False
    # 0 is any time.
    connection.answer_timeout = connection.own_answer_timeout = statement_timeout + GRACE if statement_timeout else None
    return connection


@contextmanager
def within(connection: Connection, seconds: float | None, lock_seconds: float | None = None) -> Iterator[Connection]:
    """Let each statement of the block take `seconds`, and wait `lock_seconds` of them for locks; None: any time.

    In a transaction this holds for the rest of it in the server.
    """
    driver = connection.connection.driver_connection
    if not isinstance(driver, Bounded) or driver.answer_timeout is None:
        yield connection
        return
    scope, before = "SESSION" if driver.autocommit else "LOCAL", driver.answer_timeout
    values = ((seconds, "statement_timeout"), (lock_seconds, "lock_timeout"))
    for value, name in values:
        connection.exec_driver_sql(f"SET {scope} {name} = {round((value or 0) * 1000)}")
    driver.answer_timeout = None if seconds is None else seconds + GRACE
    try:
        yield connection
    finally:
        driver.answer_timeout = before
        if scope == "SESSION" and not driver.closed:
            connection.exec_driver_sql(f"SET statement_timeout = {round((before - GRACE) * 1000)}")
            connection.exec_driver_sql("SET lock_timeout TO DEFAULT")


def _document(text: bytes) -> Any:
    """Read JSON as Postgres writes it: UTF-8 and without space around it, which `json.loads` would look for first."""
    return _DECODER.raw_decode(text.decode())[0]


def check_version(engine: Engine) -> None:
    """Raise Unavailable, with the remedy, where the server is older than PostgreSQL 15."""
    with engine.connect() as connection:
        found = connection.exec_driver_sql("SHOW server_version_num").scalar_one()
    if int(found) // 10_000 < OLDEST_POSTGRES:
        raise Unavailable(f"PostgreSQL {int(found) // 10_000} is too old: upgrade it to {OLDEST_POSTGRES} or newer")
