"""Sessions of Postgres: lent for statements, and named so that the run after one that froze can end its own."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from threading import RLock
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

import psycopg
from psycopg.errors import DeadlockDetected, LockNotAvailable, QueryCanceled
from psycopg.rows import dict_row, scalar_row

from taskbridge.common.names import DEFAULT_SCHEMA
from taskbridge.errors import Unavailable
from taskbridge.store.address import parameters_of
from taskbridge.store.bounded import Bounded, NoAnswer, NoSession, of_the_socket, open_session
from taskbridge.store.queries import LOCAL, SCHEMA_OPTION, query, setting

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from taskbridge.common.run_key import RunKey

    Database: TypeAlias = Engine | "Reader"

__all__ = [
    "IMPATIENT",
    "OLDEST_POSTGRES",
    "PATIENT",
    "SHORT_WAIT",
    "SILENT",
    "Broken",
    "Reader",
    "Watched",
    "check_version",
    "distrust",
    "driver_error",
    "driving",
    "in_one_message",
    "is_busy",
    "is_without_session",
    "rows",
    "scalar",
    "session_name",
    "successor_of",
    "with_second_try",
]

T = TypeVar("T")

OLDEST_POSTGRES: Final = 15
"""The oldest major version that is let in. It still got fixes when it was chosen; the tests run on a newer one."""


class Broken(psycopg.OperationalError):
    """The connection broke, so that nothing is known of the statement."""


SILENT: Final = (Broken, NoAnswer, QueryCanceled)
"""How a statement ends that Postgres did not answer in time, or at all: the next one may take as long."""
SHORT_WAIT: Final = "50ms"
"""How long a session waits for a lock at the most while several runs wait for what it does."""
IMPATIENT: Final = setting("lock_timeout", SHORT_WAIT)
"""Let a session wait no longer; `PATIENT` ends that."""
PATIENT: Final = setting("lock_timeout", None)


class Reader:
    """The one session of a process that changes nothing. It has no pool: SQLAlchemy takes as long to load as all else.

    Args: as those of `taskbridge.store.connect`.

    Raises:
        ConfigurationError: the URL cannot be read.
    """

    _session: Bounded | None = None
    _pid: int | None = None

    def __init__(self, url: str, schema: str = DEFAULT_SCHEMA, *, statement_timeout: float | None = None) -> None:
        self.schema = schema
        self._statement_timeout = statement_timeout
        self._parameters = parameters_of(url)
        self._parameters |= of_the_socket(self._parameters, statement_timeout)
        self._alone = RLock()

    def __del__(self) -> None:
        """Close the session: a psycopg before 3.3 is part of a cycle, and would keep it until that is collected.

        A forked child leaves alone what its parent still uses.
        """
        if self._pid == os.getpid():
            self.close()

    def get_execution_options(self) -> Mapping[str, str]:
        """Return the schema, as an engine has it."""
        return {SCHEMA_OPTION: self.schema}

    @contextmanager
    def lend(self) -> Iterator[Bounded]:
        """Lend the session to one thread at a time, each statement its own transaction."""
        with self._alone:
            if self._session is not None and self._session.ended:
                self.close()
            if self._session is None:
                self._session = open_session(self._statement_timeout, **self._parameters)
                self._session.autocommit = True
                self._pid = os.getpid()
            try:
                yield self._session
            except BaseException:
                # Nobody knows in which state it is.
                self.close()
                raise

    def close(self) -> None:
        """Close the session; the next call of `lend` opens another."""
        session, self._session = self._session, None
        if session is not None:
            session.close()


class Watched:
    """A pool that lends no session that was opened before `distrusted`, by the process's monotonic clock."""

    distrusted: float = -math.inf


def distrust(engine: Engine) -> None:
    """Lend no session any more that is open by now; whoever uses one at this moment keeps it until the end.

    Where one session broke or gives no answer, others often do too: they share a server and a route. `Engine.dispose`
    would never close those that are in use.
    """
    if isinstance(engine.pool, Watched):
        engine.pool.distrusted = monotonic()
    else:
        engine.dispose()


@contextmanager
def driving(database: Database) -> Iterator[psycopg.Connection[Any]]:
    """Lend psycopg's connection, each statement its own transaction. So a run does not pay for SQLAlchemy's work.

    Raises:
        Broken: the connection broke. Those that lie in the pool are not lent any more.
    """
    if isinstance(database, Reader):
        with database.lend() as session:
            yield session
        return
    pooled = database.raw_connection()
    driver: psycopg.Connection[Any] | None = pooled.driver_connection
    assert driver is not None  # noqa: S101 - for the type: a connection of the pool has its driver's
    try:
        driver.autocommit = True
        yield driver
        driver.autocommit = False
    except BaseException as error:
        broken = driver.broken
        # Nobody knows in which state it is, so it must not go back to the pool.
        pooled.invalidate()
        if isinstance(error, NoAnswer):
            # A second try would take as long.
            distrust(database)
        elif broken and isinstance(error, psycopg.OperationalError):
            distrust(database)
            raise Broken(*error.args) from error
        raise
    finally:
        pooled.close()


def with_second_try(work: Callable[[], T]) -> T:
    """Return what `work` returns; it is called again if its connection broke.

    A server that restarts breaks every connection that lies in the pool. The first try finds that out for all of them.
    """
    try:
        return work()
    except Broken:
        return work()


def in_one_message(
    driver: psycopg.Connection[Any], statement: str, values: Mapping[str, Any], **settings: str
) -> list[tuple[Any, ...]]:
    """Do a statement under these settings of Postgres, as a transaction of its own, and return its rows.

    It may be several, with semicolons between them: the rows are those of the last that has any. All of it is one
    message, with the values in the text. A pipeline or a transaction is several: a process that freezes between two of
    them keeps what it has locked, for as long as it is frozen.
    """
    before = "".join(f"{setting(name, value, LOCAL)}; " for name, value in settings.items())
    # A time-out may pass just as the statement ends: this takes it then, and not the session's next statement.
    after = f"; {setting('statement_timeout', None, LOCAL)}" if "statement_timeout" in settings else ""
    with psycopg.ClientCursor(driver) as cursor:
        cursor.execute(before + statement + after, values)
        found: list[tuple[Any, ...]] = []
        has_more: bool | None = True
        while has_more:
            found = cursor.fetchall() if cursor.description else found
            has_more = cursor.nextset()
        return found


def rows(
    driver: psycopg.Connection[Any], statement: str, values: Mapping[str, Any] | None = None
) -> list[dict[str, Any]]:
    """Return a statement's rows, with the names of their columns."""
    return driver.cursor(row_factory=dict_row).execute(statement, values).fetchall()


def scalar(driver: psycopg.Connection[Any], statement: str, values: Mapping[str, Any] | None = None) -> Any:
    """Return the first column of a statement's first row; None where it has no row."""
    return driver.cursor(row_factory=scalar_row).execute(statement, values).fetchone()


def driver_error(error: BaseException | None) -> psycopg.Error | None:
    """Return psycopg's error: the one that SQLAlchemy's holds, or the given one. None: it is neither."""
    try:
        said = getattr(error, "orig", error)
    except Exception:  # a class that is not ours may have a property of this name, which may raise anything
        return None
    return said if isinstance(said, psycopg.Error) else None


def is_busy(error: BaseException) -> bool:
    """Whether a statement ended because a lock did not come in time, or by a deadlock: another try may succeed."""
    return isinstance(driver_error(error), (LockNotAvailable, DeadlockDetected))


def is_without_session(error: BaseException) -> bool:
    """Whether nothing was done because Postgres, or a pooler in front of it, has no session left."""
    return isinstance(driver_error(error), NoSession)


def check_version(database: Database) -> None:
    """Raise Unavailable, with the remedy, where the server is older than PostgreSQL 15."""
    with driving(database) as driver:
        found = int(scalar(driver, query("server_version_number")))
    if found // 10_000 < OLDEST_POSTGRES:
        raise Unavailable(f"PostgreSQL {found // 10_000} is too old", f"upgrade it to {OLDEST_POSTGRES} or newer")


def session_name(key: RunKey) -> str:
    """Return the name of a session that may hold locks of a run: a part for the tenant, and the token."""
    return f"{_tenant_name(key)} {key.token}"


def _tenant_name(key: RunKey) -> str:
    of_tenant = hashlib.sha256(json.dumps((key.pipeline, key.tenant)).encode()).hexdigest()
    return f"taskbridge {of_tenant[:16]}"


def successor_of(key: RunKey) -> dict[str, str]:
    """Return the values of `end_replaced`, by which a run ends the sessions of the runs that it replaced."""
    return {"session": session_name(key), "of_tenant": f"{_tenant_name(key)} %"}
