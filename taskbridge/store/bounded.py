"""A session of Postgres that waits for an answer no longer than it may."""

from __future__ import annotations

import math
import select
from collections.abc import Container, Iterator
from contextlib import ExitStack, closing, contextmanager
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, TypeVar

import psycopg
from psycopg.abc import PQGen
from psycopg.errors import TooManyConnections

from taskbridge.store.queries import LOCAL, SESSION, query, setting

if TYPE_CHECKING:
    from sqlalchemy import Connection

__all__ = [
    "GRACE",
    "Bounded",
    "NoAnswer",
    "NoSession",
    "driver_of",
    "let_statements_take",
    "of_the_socket",
    "open_session",
    "within",
]

T = TypeVar("T")

GRACE: Final = 1.0
"""Seconds that a process waits longer than Postgres may work: an error says more than a lost connection."""

OPENED_WITHIN: Final = 25.0
"""Seconds for opening a session whose statements may take any time."""

NONE_LEFT: Final = (
    "too many clients",
    "too many connections",
    "connection slots",
    "no more connections allowed",
    "query_wait_timeout",
)
"""Parts of what Postgres and PgBouncer say where no session is left, in English.

libpq keeps no SQLSTATE of a login that fails, so a server with another language in `lc_messages` looks as if it were
away.
"""
_KEPT_WAITING: Final = "let this process in, and gave it no session"

_STYLES: Final = {"DateStyle": "ISO", "IntervalStyle": "postgres"}
"""What psycopg can read. Postgres tells both to each session that begins."""
_OF_THE_START: Final = (
    "client_encoding",
    "application_name",
    "DateStyle",
    "IntervalStyle",
    "TimeZone",
    "standard_conforming_strings",
)
"""What a client sets when it logs in, and Postgres reports. A pooler such as PgBouncer sets these by SET."""


class NoAnswer(psycopg.OperationalError):
    """Postgres did not answer in time, so the connection was given up; what became of the statement is unknown."""


class NoSession(psycopg.OperationalError):
    """Postgres, or a pooler in front of it, has no session left for this process. Nothing was sent that may count."""


class Bounded(psycopg.Connection[Any]):
    """A connection that waits `answer_timeout` seconds for an answer, and is given up then; None: any time.

    Postgres cannot end a statement itself when its process has stopped, or when the route to it was dropped and the
    socket stays open.
    """

    answer_timeout: float | None = None
    own_answer_timeout: float | None = None
    """What `answer_timeout` is whenever the connection leaves the pool."""
    settings: str = ""
    """The statement that sets what the session had set when it was opened, after RESET ALL."""
    opened: float = -math.inf
    """When it was about to be opened, by the process's monotonic clock."""

    @property
    def ended(self) -> bool:
        """Whether the session has ended while nobody used it. Costs a system call, and no round trip.

        A server tells an idle session nothing but why it ends. Who has let it LISTEN gets another one, too.
        """
        if self.closed:
            return True
        socket = select.poll()
        socket.register(self.fileno(), select.POLLIN)
        return bool(socket.poll(0))

    def wait(self, gen: PQGen[T], interval: float = 0.1, timeout: float | None = None) -> T:
        """Wait as psycopg does.

        An error's text is what Postgres says first. The rest (DETAIL, CONTEXT, the line of the statement) quotes rows
        and parameters, which are documents; whoever may see those finds them in the error's `diag`.

        Raises:
            NoAnswer: it took longer than `answer_timeout`; the connection is closed. A `timeout` is the caller's own
                affair: silence is no fault while one waits for notifications.
        """
        try:
            if timeout is not None:
                return super().wait(gen, interval, timeout)
            if self.answer_timeout is not None:
                # Not by psycopg's own time-out: it has none before 3.3.
                gen = self._in_time(gen, self.answer_timeout)
            return super().wait(gen, interval)
        except psycopg.Error as error:
            if error.diag.message_primary:
                error.args = (error.diag.message_primary,)
            raise

    def _in_time(self, gen: PQGen[T], seconds: float) -> PQGen[T]:
        """Take the steps of `gen`, which psycopg asks for ten times a second at the least, for so many seconds."""
        deadline = monotonic() + seconds
        try:
            wanted = next(gen)
            while True:
                wanted = gen.send((yield wanted))
                if monotonic() >= deadline:
                    self.pgconn.finish()
                    raise NoAnswer(f"timeout: Postgres has not answered for {seconds:g} s")
        except StopIteration as end:
            answer: T = end.value
            return answer


def of_the_socket(given: Container[str], statement_timeout: float | None) -> dict[str, Any]:
    """Return how a dead peer is noticed while a session is idle, or a long statement runs; `given` is the URL's own.

    Also the encoding of its texts: a role or a database may have another one for its sessions, and not all of these can
    hold every name or document.
    """
    values: dict[str, Any] = {
        "client_encoding": "UTF8",
        "connect_timeout": 5,
        "keepalives_idle": 10,
        "keepalives_interval": 5,
        "keepalives_count": 3,
        "tcp_user_timeout": round((statement_timeout or OPENED_WITHIN) * 1000),
    }
    return {"application_name": "taskbridge"} | {name: value for name, value in values.items() if name not in given}


def open_session(statement_timeout: float | None, *arguments: Any, **parameters: Any) -> Bounded:
    """Open a session whose statements take so many seconds at the most; None: any time. The URL's own limit wins.

    Raises:
        NoSession: there is none left, or a pooler gave none within the time of a statement.
    """
    opened, seconds = monotonic(), (statement_timeout or OPENED_WITHIN) + GRACE
    try:
        with ExitStack() as unless_ready:
            connection = unless_ready.enter_context(closing(Bounded.connect(*arguments, **parameters)))
            connection.opened = opened
            connection.answer_timeout = max(opened + seconds - monotonic(), GRACE)
            connection.autocommit = True
            # 0 is any time.
            limit = _take_settings(connection, statement_timeout, parameters.get("options", ""))
            connection.settings = _settings_again(connection, limit)
            connection.autocommit = False
            unless_ready.pop_all()
    except NoAnswer as error:
        raise NoSession(f"Postgres, or a pooler, {_KEPT_WAITING} for {seconds:g} s") from error
    except psycopg.OperationalError as error:
        if error.sqlstate == TooManyConnections.sqlstate or any(text in str(error) for text in NONE_LEFT):
            raise NoSession(*error.args) from error
        raise
    connection.answer_timeout = connection.own_answer_timeout = limit + GRACE if limit else None
    return connection


def _take_settings(connection: Bounded, statement_timeout: float | None, options: str) -> float | None:
    """Limit the session's statements, and let it write dates and intervals as psycopg reads them.

    A role or a database may have other styles. Returns the limit in seconds; the URL's own among its `options` wins.
    """
    status = connection.pgconn.parameter_status
    # With the style of dates comes their order, as in `ISO, DMY`.
    settings = [
        setting(name, style)
        for name, style in _STYLES.items()
        if (status(name.encode()) or style.encode()).partition(b",")[0] != style.encode()
    ]
    # As Postgres reads the name: in any case, and a hyphen is an underscore.
    has_own = statement_timeout is not None and "statement_timeout" in options.lower().replace("-", "_")
    if statement_timeout is not None and not has_own:
        settings.append(setting("statement_timeout", round(statement_timeout * 1000)))
    if settings:
        connection.execute("; ".join(settings))
    if not has_own:
        return statement_timeout
    found = connection.execute(query("statement_timeout")).fetchone()
    return int(found[0]) / 1000 if found else 0


def _settings_again(connection: Bounded, limit: float | None) -> str:
    """Return the statement that sets all of this again, whether it came with the login, from a pooler, or by SET."""
    status = connection.pgconn.parameter_status
    found = {name: value.decode() for name in _OF_THE_START if (value := status(name.encode()))}
    if limit:
        found["statement_timeout"] = f"{round(limit * 1000)}ms"
    values = {"names": [*found], "values": [*found.values()], "only_from": [], "locally": False}
    return psycopg.ClientCursor(connection).mogrify(query("set_parameters"), values)


def driver_of(connection: Connection | psycopg.Connection[Any]) -> psycopg.Connection[Any]:
    """Return psycopg's connection: that of SQLAlchemy's, or the given one."""
    if isinstance(connection, psycopg.Connection):
        return connection
    driver = connection.connection.driver_connection
    assert isinstance(driver, psycopg.Connection)  # noqa: S101 - for the type: psycopg is the driver
    return driver


def let_statements_take(driver: psycopg.Connection[Any], seconds: float | None) -> None:
    """Let each statement of a session take `seconds`, or less where its own limit is shorter; None: its own limit.

    How long the process waits for an answer stays as it is.
    """
    own = driver.own_answer_timeout if isinstance(driver, Bounded) else None
    limits = [limit for limit in (seconds, own - GRACE if own else None) if limit is not None]
    driver.execute(setting("statement_timeout", round(min(limits) * 1000) if limits else None))


@contextmanager
def within(
    connection: Connection | psycopg.Connection[Any], seconds: float | None, lock_seconds: float | None = None
) -> Iterator[None]:
    """Let each statement of the block take `seconds`, and wait `lock_seconds` of them for locks; None: any time.

    In a transaction this holds for the rest of it in the server.
    """
    driver = driver_of(connection)
    if not isinstance(driver, Bounded) or driver.answer_timeout is None:
        yield
        return
    scope, before = SESSION if driver.autocommit else LOCAL, driver.answer_timeout
    values = (("statement_timeout", seconds), ("lock_timeout", lock_seconds))
    own = None if seconds is None else seconds + GRACE
    try:
        # Who may not wait long waits no longer for this either.
        driver.answer_timeout = before if own is None else min(before, own)
        driver.execute("; ".join(setting(name, round((value or 0) * 1000), scope) for name, value in values))
        driver.answer_timeout = own
        yield
    finally:
        driver.answer_timeout = before
        if scope == SESSION and not driver.closed:
            usual = setting("statement_timeout", round((before - GRACE) * 1000))
            driver.execute(f"{usual}; {setting('lock_timeout', None)}")
