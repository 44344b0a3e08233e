"""Postgres: the pool of sessions, and what every statement shares: time limits, pipelines, another try.

A statement is limited twice: Postgres ends it after `statement_timeout`, and this process gives the connection up a
little later, since a server that has stopped, or a route that was dropped, ends nothing.

A session of ours may be a pooler's, such as PgBouncer's in transaction mode, where each transaction can have another
session of the server, and other clients have it afterwards. Such a session is recognized when it is opened. It keeps no
setting, each transaction begins with the limits instead (`Bounded.limits`), and nothing is prepared.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import select
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self, TypeAlias, TypeVar
from urllib.parse import parse_qs, unquote

import psycopg
from psycopg import generators
from psycopg.abc import PQGen
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.errors import DeadlockDetected, LockNotAvailable, QueryCanceled, TooManyConnections, error_from_result
from psycopg.pq import ExecStatus, PipelineStatus, TransactionStatus
from psycopg.pq.abc import PGconn, PGresult
from psycopg.rows import dict_row, scalar_row
from sqlalchemy import URL, Connection, Engine, QueuePool, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, DisconnectionError

from taskbridge.common.names import DEFAULT_SCHEMA
from taskbridge.common.server_errors import wrapped_error
from taskbridge.errors import ConfigurationError, Unavailable
from taskbridge.store.queries import LOCAL, SCHEMA_OPTION, query, setting

if TYPE_CHECKING:
    from taskbridge.common.run_key import RunKey

__all__ = [
    "GRACE",
    "OLDEST_POSTGRES",
    "SHORT_WAIT",
    "SILENT",
    "Bounded",
    "Broken",
    "Database",
    "NoAnswer",
    "NoSession",
    "check_version",
    "connect",
    "distrust",
    "driver_error",
    "driver_of",
    "driving",
    "in_one_message",
    "in_one_trip",
    "is_busy",
    "is_without_session",
    "local_settings",
    "parameters_of",
    "pooler_of",
    "rows",
    "scalar",
    "session_name",
    "shorter",
    "successor_of",
    "with_second_try",
    "within",
]

T = TypeVar("T")

Database: TypeAlias = Engine

OLDEST_POSTGRES: Final = 15
"""The oldest major version that is let in. It still got fixes when it was chosen; the tests run on a newer one."""
GRACE: Final = 1.0
"""Seconds that a process waits longer than Postgres may work: an error says more than a lost connection."""
POOLER_TRIES: Final = 5
"""Times that two connections are asked which session of the server they have."""
OPENED_WITHIN: Final = 25.0
"""Seconds for opening a session whose statements may take any time."""
SHORT_WAIT: Final = "50ms"
"""How long a session waits for a lock at the most while several runs wait for what it does."""


class NoAnswer(psycopg.OperationalError):
    """Postgres did not answer in time, so the connection was given up; what became of the statement is unknown."""


class NoSession(psycopg.OperationalError):
    """Postgres, or a pooler in front of it, has no session left for this process. Nothing was sent that may count."""


class Broken(psycopg.OperationalError):
    """The connection broke, so that nothing is known of the statement."""


SILENT: Final = (Broken, NoAnswer, QueryCanceled)
"""How a statement ends that Postgres did not answer in time, or at all: the next one may take as long."""

_NONE_LEFT: Final = (
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

# The URL.

_UNREADABLE: Final = (
    "TASKBRIDGE_POSTGRES_URL cannot be read",
    "write postgresql://user:password@host:port/database, with special characters percent-encoded",
)
# More lenient than libpq, which takes no slash in a password.
_URL: Final = re.compile(
    r"[\w+]+://(?:(?P<user>[^:/]*)(?::(?P<password>[^@]*))?@)?(?P<where>[^?]*)(?:\?(?P<options>.*))?"
)
_HOST_OF_OPTIONS: Final = re.compile(r"([\w.-]*):(\d*)")
_NEVER: Final = "none"


def parameters_of(url: str) -> dict[str, Any]:
    """Return what psycopg connects with: what libpq takes, and `prepare_threshold` (a number, or None).

    Several hosts are written as libpq's `a:1,b:2`, or as SQLAlchemy's `?host=a:1&host=b:2`.

    Raises:
        ConfigurationError: the URL cannot be read.
    """
    found = _URL.fullmatch(url)
    if found is None:
        raise ConfigurationError(*_UNREADABLE)
    try:
        values: dict[str, Any] = conninfo_to_dict(f"postgresql://{found['where']}")
        int(values.get("port", "").replace(",", "") or 0)
    except (psycopg.ProgrammingError, ValueError):
        raise ConfigurationError(*_UNREADABLE) from None
    options = parse_qs(found["options"] or "")
    threshold = options.pop("prepare_threshold", None)
    named = [_HOST_OF_OPTIONS.fullmatch(host) for host in options.get("host", ())]
    if any(named):
        options["port"] = [one[2] if one else "" for one in named]
        options["host"] = [one[1] if one else name for one, name in zip(named, options["host"], strict=True)]
    values |= {name: unquote(found[name] or "") for name in ("user", "password")}
    values |= {name: ",".join(several) for name, several in options.items()}
    given = {name: value for name, value in values.items() if value.strip(",")}
    try:
        make_conninfo(**given)
        int(float(given.get("connect_timeout", 0)))
        if threshold:
            given["prepare_threshold"] = None if threshold[-1].lower() == _NEVER else int(threshold[-1])
    except (psycopg.ProgrammingError, ValueError, OverflowError):
        # A password that is not percent-encoded may look like parameters.
        names = f" ({', '.join(options)})" if not re.search("@|password", found["options"] or "") else ""
        raise ConfigurationError(
            f"TASKBRIDGE_POSTGRES_URL has a parameter behind its `?` that libpq does not take{names}",
            "correct it, or leave it out: https://www.postgresql.org/docs/current/libpq-connect.html names them all",
        ) from None
    return given


def _described(url: str) -> URL:
    """Return SQLAlchemy's form of a URL, which describes an engine. It cannot hold several hosts, or any port."""
    try:
        return make_url(url).set(drivername="postgresql+psycopg").difference_update_query(["port"])
    except (ArgumentError, ValueError):
        return URL.create("postgresql+psycopg")


# A session.

_STYLES: Final = {"DateStyle": "ISO", "IntervalStyle": "postgres"}
"""What psycopg can read. Postgres tells both to each session that begins."""
_OF_A_CLIENT: Final = (
    "client_encoding",
    "application_name",
    "DateStyle",
    "TimeZone",
    "standard_conforming_strings",
)
"""What a client sets when it logs in, and Postgres reports. PgBouncer sets these anew for each client of a session
(https://www.pgbouncer.org/config.html, `track_extra_parameters`)."""


class Bounded(psycopg.Connection[Any]):
    """A connection that waits `answer_timeout` seconds for an answer, and is given up then; None: any time."""

    answer_timeout: float | None = None
    own_answer_timeout: float | None = None
    """What `answer_timeout` is whenever the connection leaves the pool."""
    pooled: bool = False
    """Whether a pooler is between this process and Postgres, so that nothing of ours may stay in a session."""
    limits: Mapping[str, str] = {}
    """Settings of Postgres with which each transaction begins, where the session does not have them for good."""
    settings: str = ""
    """The statement that sets what the session had set when it was opened, after RESET ALL."""
    opened: float = -math.inf
    """When it was about to be opened, by the process's monotonic clock."""
    is_lent: bool = False
    """Whether it is what a handler has of a session."""

    def __init__(self, pgconn: PGconn, *arguments: Any) -> None:
        super().__init__(pgconn, *arguments)
        self.cursor_factory = _Cursor

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

    def message(self, statements: Sequence[str], needed: int) -> PQGen[list[PGresult]]:
        """Send statements without parameters as one message; return what came of each, up to the first that failed.

        Raises:
            psycopg.Error: one of the first `needed` statements failed.
        """
        self.pgconn.send_query("; ".join(statements).encode())
        results: list[PGresult] = yield from generators.execute(self.pgconn)
        if len(results) <= needed and results[-1].status == ExecStatus.FATAL_ERROR:
            raise error_from_result(results[-1])
        return results

    def _start_query(self) -> PQGen[None]:
        """Begin the transaction of SQLAlchemy's connections with the limits, in the message of BEGIN.

        In a pipeline it is the caller who sends them.
        """
        if not self.limits or self._autocommit or self._pipeline or not _is_idle(self):
            yield from super()._start_query()
            return
        statements = [self._get_tx_start_command().decode(), *local_settings(self.limits)]
        yield from self.message(statements, len(statements))


class _Cursor(psycopg.Cursor[Any]):
    """A cursor whose statement is a transaction of its own with the connection's limits, if that is in autocommit."""

    def execute(self, *arguments: Any, **options: Any) -> Self:
        """Execute as psycopg does. Rows are there when this returns, so it is one round trip with limits too."""
        connection = self._conn
        is_alone = connection.autocommit and connection.pgconn.pipeline_status == PipelineStatus.OFF
        if not (is_alone and isinstance(connection, Bounded) and connection.limits and _is_idle(connection)):
            return super().execute(*arguments, **options)
        try:
            with in_one_trip(connection):
                super().execute(*arguments, **options)
        except psycopg.Error:
            if not connection.closed:
                connection.rollback()
            raise
        return self


def _is_idle(connection: psycopg.Connection[Any]) -> bool:
    return connection.pgconn.transaction_status == TransactionStatus.IDLE


def local_settings(settings: Mapping[str, str | None]) -> list[str]:
    """Return the statements that let settings hold for a transaction; None is the session's own value."""
    return [setting(name, value, LOCAL) for name, value in settings.items()]


def milliseconds(seconds: float | None) -> str:
    """Return a limit as Postgres takes it; None: any time."""
    return f"{round((seconds or 0) * 1000)}ms"


def open_session(statement_timeout: float | None, parameters: Mapping[str, Any]) -> Bounded:
    """Open a session whose statements take so many seconds at the most; None: any time. The URL's own limit wins.

    Raises:
        NoSession: there is none left, or a pooler gave none within the time of a statement.
    """
    opened, seconds = monotonic(), (statement_timeout or OPENED_WITHIN) + GRACE
    usual = {
        # A role or a database may have another encoding, and not all can hold every name or document.
        "client_encoding": "UTF8",
        "application_name": "taskbridge",
        # How a dead peer is noticed while a session is idle, or a long statement runs.
        "connect_timeout": 5,
        "keepalives_idle": 10,
        "keepalives_interval": 5,
        "keepalives_count": 3,
        "tcp_user_timeout": round((statement_timeout or OPENED_WITHIN) * 1000),
    }
    try:
        with ExitStack() as unless_ready:
            connection = unless_ready.enter_context(closing(Bounded.connect(**{**usual, **parameters})))
            connection.opened = opened
            connection.answer_timeout = max(opened + seconds - monotonic(), GRACE)
            connection.autocommit = True
            # 0 is any time.
            limit = _take_settings(connection, statement_timeout, parameters)
            connection.autocommit = False
            unless_ready.pop_all()
    except NoAnswer as error:
        said = f"Postgres, or a pooler, let this process in, and gave it no session for {seconds:g} s"
        raise NoSession(said) from error
    except psycopg.OperationalError as error:
        if error.sqlstate == TooManyConnections.sqlstate or any(text in str(error) for text in _NONE_LEFT):
            raise NoSession(*error.args) from error
        raise
    connection.answer_timeout = connection.own_answer_timeout = limit + GRACE if limit else None
    return connection


def _take_settings(connection: Bounded, statement_timeout: float | None, parameters: Mapping[str, Any]) -> float | None:
    """Find out whether a pooler is in between, limit statements, and let psycopg read dates and intervals.

    A role or a database may have other styles. Returns the limit in seconds; the URL's own among its `options` wins.
    """
    status = connection.pgconn.parameter_status
    # With the style of dates comes their order, as in `ISO, DMY`.
    settings = {
        name: style
        for name, style in _STYLES.items()
        if (status(name.encode()) or style.encode()).partition(b",")[0] != style.encode()
    }
    # As Postgres reads the name: in any case, and a hyphen is an underscore.
    options = parameters.get("options", "").lower().replace("-", "_")
    has_own = statement_timeout is not None and "statement_timeout" in options
    if statement_timeout is not None and not has_own:
        settings["statement_timeout"] = milliseconds(statement_timeout)
    # Whoever prepares nothing has a pooler that looks like Postgres.
    prepares_nothing = parameters.get("prepare_threshold", 0) is None
    values = {
        "pid": -1 if prepares_nothing else connection.pgconn.backend_pid,
        "names": [*settings],
        "values": [*settings.values()],
    }
    with psycopg.ClientCursor(connection) as cursor:
        is_direct, own, _ = cursor.execute(query("open_session"), values).fetchone() or (False, 0.0, None)
    limit = own if has_own else statement_timeout
    if not is_direct:
        connection.pooled, connection.limits = True, settings
        if "prepare_threshold" not in parameters:
            connection.prepare_threshold = None
    connection.settings = _settings_again(connection, limit)
    return limit


def _settings_again(connection: Bounded, limit: float | None) -> str:
    """Return the statement that sets all of this again, whether it came with the login, from a pooler, or by SET."""
    status = connection.pgconn.parameter_status
    names = _OF_A_CLIENT if connection.pooled else (*_OF_A_CLIENT, "IntervalStyle")
    found = {name: value.decode() for name in names if (value := status(name.encode()))}
    if limit and not connection.pooled:
        found["statement_timeout"] = milliseconds(limit)
    values = {"names": [*found], "values": [*found.values()], "only_from": [], "locally": False}
    return psycopg.ClientCursor(connection).mogrify(query("set_parameters"), values)


# The pool.


class _Pool(QueuePool):
    """A pool that lends no session that was opened before `distrusted`, by the process's monotonic clock."""

    distrusted: float = -math.inf


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
    parameters = parameters_of(url)
    engine = create_engine(
        _described(url),
        creator=lambda: open_session(statement_timeout, parameters),
        # As many connections as there are threads that work, however many the pool of the worker has.
        max_overflow=-1,
        hide_parameters=True,
        execution_options={SCHEMA_OPTION: schema},
        poolclass=_Pool,
        **options,
    )

    def check_out(connection: Any, _record: Any, _proxy: Any) -> None:
        pool = engine.pool
        if not (isinstance(pool, _Pool) and isinstance(connection, Bounded)):
            return
        if connection.opened <= pool.distrusted or connection.ended:
            raise DisconnectionError  # the pool closes it and opens another
        connection.answer_timeout = connection.own_answer_timeout

    def check_in(connection: Any, record: Any) -> None:
        # A handler gave it back, and nobody has reset it.
        if isinstance(connection, Bounded) and connection.is_lent:
            record.invalidate()

    event.listen(engine, "checkout", check_out)
    event.listen(engine, "checkin", check_in)
    return engine


def distrust(engine: Engine) -> None:
    """Lend no session any more that is open by now; whoever uses one at this moment keeps it until the end.

    Where one session broke or gives no answer, others often do too: they share a server and a route. `Engine.dispose`
    would never close those that are in use.
    """
    if isinstance(engine.pool, _Pool):
        engine.pool.distrusted = monotonic()
    else:
        engine.dispose()


def driver_of(connection: Connection | psycopg.Connection[Any]) -> psycopg.Connection[Any]:
    """Return psycopg's connection: that of SQLAlchemy's, or the given one."""
    if isinstance(connection, psycopg.Connection):
        return connection
    driver = connection.connection.driver_connection
    assert isinstance(driver, psycopg.Connection)  # noqa: S101 - for the type: psycopg is the driver
    return driver


@contextmanager
def driving(database: Database) -> Iterator[Bounded]:
    """Lend psycopg's connection, each statement its own transaction. So a run does not pay for SQLAlchemy's work.

    Raises:
        Broken: the connection broke. Those that lie in the pool are not lent any more.
    """
    pooled = database.raw_connection()
    driver = pooled.driver_connection
    assert isinstance(driver, Bounded)  # noqa: S101 - for the type: the pool opens no others
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


class Pooler(NamedTuple):
    """What is between this process and Postgres; `mode` is `transaction` or `session`, as it was seen to work."""

    name: str
    mode: str
    prepares: bool


def pooler_of(database: Database, url: str) -> Pooler | None:
    """Return which pooler there is between this process and Postgres; None: there is none.

    Two connections at once have the same session of the server only where each transaction may have another one.
    """
    seen: tuple[set[int], set[int]] = (set(), set())
    with driving(database) as one, driving(database) as two:
        for _ in range(POOLER_TRIES):
            for driver, pids in zip((one, two), seen, strict=True):
                pids.add(scalar(driver, query("backend_pid")))
        if {one.pgconn.backend_pid} == seen[0]:
            return None
        prepares = one.prepare_threshold is not None
    return Pooler(_pooler_name(url), "transaction" if seen[0] & seen[1] else "session", prepares)


def _pooler_name(url: str) -> str:
    """Ask PgBouncer's console, which not every role may use."""
    parameters = {**parameters_of(url), "dbname": "pgbouncer", "prepare_threshold": None, "connect_timeout": 5}
    try:
        with psycopg.connect(**parameters, autocommit=True) as console, psycopg.ClientCursor(console) as cursor:
            ((version,),) = cursor.execute(query("pooler_version")).fetchall()
            return str(version)
    except (psycopg.Error, ValueError):
        return "a pooler"


# Statements.


@contextmanager
def in_one_trip(driver: Bounded, begin: str | None = None, **settings: str) -> Iterator[None]:
    """Do what the block sends as one transaction in one round trip, under these settings of Postgres."""
    with driver.pipeline():
        begin_transaction(driver, begin, **settings)
        yield
        driver.execute(query("commit"))


def begin_transaction(driver: Bounded, begin: str | None = None, **settings: str) -> None:
    """Begin a transaction under these settings and the connection's limits, in a pipeline.

    By default it is READ COMMITTED, whatever the database's own level is.
    """
    driver.execute(begin or query("begin"))
    for statement in local_settings({**driver.limits, **settings}):
        driver.execute(statement)


def in_one_message(
    driver: psycopg.Connection[Any], statement: str, values: Mapping[str, Any], **settings: str
) -> list[tuple[Any, ...]]:
    """Do a statement under these settings of Postgres, as a transaction of its own, and return its rows.

    It may be several, with semicolons between them: the rows are those of the last that has any. All of it is one
    message, with the values in the text. A pipeline or a transaction is several: a process that freezes between two of
    them keeps what it has locked, for as long as it is frozen.
    """
    limits = {**(driver.limits if isinstance(driver, Bounded) else {}), **settings}
    # A time-out may pass just as the statement ends: this takes it then, and not the session's next statement.
    after = [setting("statement_timeout", None, LOCAL)] if "statement_timeout" in limits else []
    with psycopg.ClientCursor(driver) as cursor:
        cursor.execute("; ".join([*local_settings(limits), statement, *after]), values)
        found: list[tuple[Any, ...]] = []
        has_more: bool | None = True
        while has_more:
            found = cursor.fetchall() if cursor.description else found
            has_more = cursor.nextset()
        return found


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
    limits = {"statement_timeout": milliseconds(seconds), "lock_timeout": milliseconds(lock_seconds)}
    answer_timeout, usual = driver.answer_timeout, driver.limits
    own = None if seconds is None else seconds + GRACE
    try:
        if driver.autocommit and _is_idle(driver):
            driver.limits = {**usual, **limits}
        else:
            # Who may not wait long waits no longer for this either.
            driver.answer_timeout = answer_timeout if own is None else min(answer_timeout, own)
            driver.execute("; ".join(local_settings(limits)))
        driver.answer_timeout = own
        yield
    finally:
        driver.answer_timeout, driver.limits = answer_timeout, usual


@contextmanager
def shorter(driver: Bounded, seconds: float, lock_timeout: str) -> Iterator[None]:
    """Let the transactions that the block sends through a pipeline have shorter limits, in no round trip of its own.

    A session of our own is set twice, which is less than each transaction. `seconds` are cut to the usual limit.
    """
    own = driver.own_answer_timeout
    usual = {"statement_timeout": milliseconds(own - GRACE) if own else None, "lock_timeout": None}
    limits = {
        "statement_timeout": milliseconds(min(seconds, own - GRACE if own else seconds)),
        "lock_timeout": lock_timeout,
    }
    if driver.pooled:
        before, driver.limits = driver.limits, {**driver.limits, **limits}
        yield
        driver.limits = before
        return
    for name, value in limits.items():
        driver.execute(setting(name, value))
    yield
    for name, default in usual.items():
        driver.execute(setting(name, default))


def rows(
    driver: psycopg.Connection[Any], statement: str, values: Mapping[str, Any] | None = None
) -> list[dict[str, Any]]:
    """Return a statement's rows, with the names of their columns."""
    return driver.cursor(row_factory=dict_row).execute(statement, values).fetchall()


def scalar(driver: psycopg.Connection[Any], statement: str, values: Mapping[str, Any] | None = None) -> Any:
    """Return the first column of a statement's first row; None where it has no row."""
    return driver.cursor(row_factory=scalar_row).execute(statement, values).fetchone()


# Errors, and who is who.


def driver_error(error: BaseException | None) -> psycopg.Error | None:
    """Return psycopg's error: the one that SQLAlchemy's holds, or the given one. None: it is neither."""
    said = wrapped_error(error) or error
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
